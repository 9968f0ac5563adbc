"""Names of the files that rounds lie in, and the note of which round was flushed to disk."""

import json
from collections.abc import Iterable

from rayfed_ssl.storage.filesystem import Place

STATES = ".safetensors"

SETTLED = "settled.json"
"""Notes the last round that was flushed to disk after it was committed; a round that was before says so in its manifest."""


def note_settled(place: Place, round: int) -> None:
    """Note durably that a round was flushed."""
    place.write(SETTLED, [json.dumps({"round": round}).encode()], durably=True)


def noted_as_settled(place: Place) -> int | None:
    """Read which round was flushed last."""
    try:
        round: int = json.loads(place.read(SETTLED))["round"]
        return round
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        return None


def forget_settled(place: Place, round: int) -> None:
    """Take back that a later round was flushed."""
    if (noted_as_settled(place) or 0) > round:
        place.delete([SETTLED])


def manifest_name(round: int) -> str:
    """Name the file that makes a round count."""
    return f"round-{round:06d}.json"


def manifests_in(names: Iterable[str]) -> dict[int, str]:
    """Find the manifests among files, in ascending order of rounds."""
    found = {}
    for name in names:
        number = name.removeprefix("round-").removesuffix(".json")
        if name == f"round-{number}.json" and number.isdecimal():
            found[int(number)] = name
    return dict(sorted(found.items()))


def is_of_later_round(name: str, round: int) -> bool:
    """Whether a state was written for a later round than the last committed one: its name ends in the round's number."""
    number = name.removesuffix(STATES).rpartition("-")[2]
    return number.isdecimal() and int(number) > round

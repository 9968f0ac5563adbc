"""Why two runs with equal settings have other bits: settings of the engine, versions, processors."""

from rayfed_ssl.config.sections import BITS, Engine
from rayfed_ssl.engine.fingerprint import different
from rayfed_ssl.records.manifest import PrecisionEntry, RunManifest

VERSIONS = ("torch", "numpy", "rayfed-ssl")
"""Packages whose versions decide bits."""

OTHER_PROCESSOR = (
    "another kind of processor computes other bits ({operations}): run with engine.cpu=portable to compare"
)


def bits_settings(precision: PrecisionEntry, engine: Engine) -> dict[str, str]:
    """Write down what `BITS` names, with what "auto" and null stand for on the machine that the entry describes."""
    values = {
        "device": precision.device.partition(":")[0],
        "cpu": engine.cpu,
        "precision": precision.dtype,
        "channels_last": precision.channels_last,
        "compile": precision.compile,
        "deterministic": engine.deterministic or not precision.device.startswith("cuda"),
        "threads": engine.threads,
        "server_threads": engine.server_threads,
    }
    return {name: f"engine.{name}={str(values[name]).lower()}" for name in BITS}


def why_bits_differ(one: RunManifest, engine: Engine, other: RunManifest, other_engine: Engine) -> str | None:
    """Say what on record explains that two runs of the same settings have other digests; None where nothing does."""
    ours, theirs = bits_settings(one.precision, engine), bits_settings(other.precision, other_engine)
    if names := [name for name in BITS if ours[name] != theirs[name]]:
        return f"{', '.join(ours[name] for name in names)} and {', '.join(theirs[name] for name in names)}"
    if names := [name for name in VERSIONS if one.versions.get(name) != other.versions.get(name)]:
        return f"other versions: {', '.join(f'{n} {one.versions.get(n)} and {other.versions.get(n)}' for n in names)}"
    if operations := different(one.fingerprint, other.fingerprint):
        return OTHER_PROCESSOR.format(operations=", ".join(operations))
    if any(entry.dropped for manifest in (one, other) for entry in manifest.rounds):
        return "clients were left out of rounds"
    return None

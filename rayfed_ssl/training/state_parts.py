"""Parts of a participant's state, and what a federation does with each.

A participant's whole state is one flat dict of tensors. The first component of a name is its part: "encoder",
"projector" and whatever else an objective trains ("predictor", "prototypes", "decoder"), or remembers without training it
("target", "queue", "bank"). Parts of their own are running statistics of trained batch-norm layers, "batch_norm", and the
factors B of an encoder's LoRA, "lora_b".
"""

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Annotated, Literal, TypeAlias

from pydantic import Field
from pydantic.dataclasses import dataclass

from rayfed_ssl.models.adapters import B
from rayfed_ssl.trees import Weights
from rayfed_ssl.validation import Validated

Rule: TypeAlias = Literal["averaged", "received", "local", "reset", "mixed"]
"""What happens to a part between two rounds.

- averaged: sent up, averaged over clients, sent down.
- received: sent down, but not up: the server learns it from something else (FLESD).
- local: kept by the client, never sent.
- reset: made anew when a local training begins.
- mixed: averaged, but the client mixes what it receives with its own, or chooses between the two (FedEMA, FedU).
"""

_STATISTICS = frozenset({"running_mean", "running_var", "num_batches_tracked"})


def is_state(part: str) -> bool:
    """Whether gradients do not train a part: the built-in objectives' states, and those of others by their prefix."""
    return part in ("target", "queue", "bank", "centroids", "center") or part.startswith("state_")


def is_statistic(name: str) -> bool:
    """Whether an entry is a running statistic of a batch-norm layer, of whatever part."""
    return name.rpartition(".")[2] in _STATISTICS


def part_of(name: str) -> str:
    """Name the part that an entry belongs to."""
    part, _, rest = name.partition(".")
    if is_state(part):
        return part
    return "batch_norm" if is_statistic(rest) else "lora_b" if rest.endswith(B) else part


def select(weights: Weights, parts: Collection[str]) -> Weights:
    """Select the entries of some parts, in the order given."""
    return {name: value for name, value in weights.items() if part_of(name) in parts}


def model_weights(weights: Weights) -> Weights:
    """Select what a model holds: everything but an objective's memory."""
    return {name: value for name, value in weights.items() if not is_state(name.partition(".")[0])}


@dataclass(frozen=True, kw_only=True)
class Parts(Validated):
    """Rules of the parts under a method that averages; None leaves a part to the objective."""

    encoder: Literal["averaged", "local"] | None = None
    """Averaged by default."""
    projector: Literal["averaged", "local"] | None = None
    """Averaged by default; "local" makes it personal."""
    predictor: Literal["averaged", "local", "reset"] | None = None
    """BYOL's and SimSiam's."""
    prototypes: Literal["averaged", "local", "reset"] | None = None
    """SwAV's."""
    decoder: Literal["averaged", "local", "reset"] | None = None
    """The autoencoder's and MAE's."""
    target: Literal["averaged", "local", "reset"] | None = None
    """BYOL's, DINO's and MoCo's slow encoder."""
    queue: Literal["local", "reset"] | None = None
    """MoCo's keys."""
    lora_b: Annotated[Literal["averaged", "local"] | None, Field(exclude_if=lambda rule: rule is None)] = None
    """B of model.adapters=lora; "local" shares A and keeps B on the client (FedSA-LoRA): there is one encoder per client."""
    batch_norm: Literal["averaged", "local"] | None = None
    """Running statistics; "local" keeps them on the client, so evaluation sees one encoder per client."""

    def over(self, rules: Mapping[str, Rule]) -> dict[str, Rule]:
        """Lay what is set here over an objective's rules.

        Raises:
            ValueError: A rule for a part that the objective does not have, or rules that contradict each other.
        """
        chosen: dict[str, Rule] = {"encoder": "averaged", "projector": "averaged", "batch_norm": "averaged", **rules}
        for field in fields(self):
            rule = getattr(self, field.name)
            if rule is None:
                continue
            if field.name not in chosen:
                raise ValueError(
                    f"method.parts.{field.name}={rule} has no meaning here: there are only {', '.join(chosen)}"
                )
            chosen[field.name] = rule
        if chosen.get("target") == "averaged" and "local" in (chosen["encoder"], chosen["projector"]):
            raise ValueError(
                "the target is a slow copy of encoder and projector, so method.parts.target=averaged would send what shall "
                "stay local: set method.parts.target=local, or leave encoder and projector averaged"
            )
        if with_rule(chosen, "averaged") <= {"batch_norm"}:
            raise ValueError("no part is averaged, got method.parts with only local ones: take method=local")
        return chosen


def all_with(rule: Rule, rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Give one rule to all parts of an objective."""
    return dict.fromkeys(("encoder", "projector", *rules, "batch_norm"), rule)


def describe(rules: Mapping[str, Rule]) -> str:
    """Say it in words: "encoder, projector averaged; queue local"."""
    by_rule: dict[str, list[str]] = {}
    for part, rule in rules.items():
        by_rule.setdefault(rule, []).append(part)
    return "; ".join(f"{', '.join(parts)} {rule}" for rule, parts in by_rule.items())


def with_rule(rules: Mapping[str, Rule], *wanted: Rule) -> frozenset[str]:
    """Name the parts that have one of some rules."""
    return frozenset(part for part, rule in rules.items() if rule in wanted)

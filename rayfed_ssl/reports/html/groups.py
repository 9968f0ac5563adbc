"""Runs that differ in their seed alone, as one: mean, spread and number."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import PageCell, flatten, plain
from rayfed_ssl.reports.seeds import Spread, setting

LABEL_LIMIT = 44
"""Characters of a label; more does not fit beside a figure on a phone."""


@dataclass(frozen=True)
class Group:
    """Runs of one setting with different seeds.

    Attributes:
        label: What tells it from the other groups.
        runs: In the order of their seeds.
    """

    label: str
    runs: tuple[ReportedRun, ...]

    def scores(self, score: str) -> list[float]:
        """Collect a final score over seeds; runs without it are left out."""
        found = (run.summary.headline(score) for run in self.runs)
        return [value for value in found if value is not None]


def group(runs: Sequence[ReportedRun]) -> tuple[Group, ...]:
    """Put runs of one setting together, in the order in which the first of each was named."""
    found: dict[str, list[ReportedRun]] = defaultdict(list)
    seen: Counter[str] = Counter()
    for run in runs:
        key = setting(run.summary)
        seed = f"{key} {run.summary.config.seed}"
        found[f"{key} {seen[seed]}"].append(run)  # a seed that comes again is no further draw: it begins another group
        seen[seed] += 1
    members = [sorted(group, key=lambda run: run.summary.config.seed) for group in found.values()]
    labels = _labels([group[0] for group in members])
    return tuple(Group(label, tuple(group)) for label, group in zip(labels, members, strict=True))


def spread(values: Sequence[float], scale: float = 100, unit: str = "%") -> PageCell:
    """Show mean ± standard deviation over seeds (n - 1) and n; a single value stands alone."""
    if not values:
        return PageCell("–")
    found = Spread.of(values)
    if found.std is None:
        return PageCell(f"{scale * found.mean:.2f}{unit}", found.mean)
    return PageCell(f"{scale * found.mean:.2f} ± {scale * found.std:.2f}{unit} (n = {found.n})", found.mean)


def differences(groups: Sequence[Group]) -> dict[str, list[str]]:
    """Find the settings that differ between groups: key -> value in each group."""
    configs = [_settings(group.runs[0]) for group in groups]
    keys = dict.fromkeys(key for config in configs for key in config)
    shown = {key: [plain(config.get(key)) if key in config else "–" for config in configs] for key in keys}
    return {key: values for key, values in shown.items() if len(set(values)) > 1}


def _settings(run: ReportedRun) -> dict[str, Any]:
    """Collect what a result depends on: all settings but the seed and how it was computed."""
    flat = flatten(run.summary.config.dump())
    return {key: value for key, value in flat.items() if key != "seed" and not key.startswith("engine.")}


def _labels(firsts: Sequence[ReportedRun]) -> list[str]:
    """Label each group by its place in a paper's table, or its method; where these are equal, by what differs."""
    labels = []
    for run in firsts:
        if run.place and [other.place for other in firsts].count(run.place) == 1:
            labels.append(run.place)
            continue
        alike = [other for other in firsts if other.summary.name == run.summary.name]
        label = run.summary.name
        if len(alike) > 1:
            own, others = _settings(run), [_settings(other) for other in alike]
            differing = [key for key in own if any(other.get(key) != own[key] for other in others)]
            label += " " + " ".join(f"{key}={plain(own[key])}" for key in differing[:2])
        labels.append(label)
    unique = [label if labels.count(label) == 1 else run.name for label, run in zip(labels, firsts, strict=True)]
    shortened = [label if len(label) <= LABEL_LIMIT else label[: LABEL_LIMIT - 1] + "…" for label in unique]
    if len(set(shortened)) < len(shortened):
        shortened = [f"{index}: {label}" for index, label in enumerate(shortened, 1)]
    return shortened

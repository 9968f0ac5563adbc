"""Runs that differ in their seed alone, as one row and one line of the report."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rayfed_ssl.formats import MeanStd
from rayfed_ssl.reports.html.sources import ReportedRun
from rayfed_ssl.reports.html.tables import MISSING, yaml_text
from rayfed_ssl.reports.seed_groups import SeedGroup, group_by_setting

LABEL_LIMIT = 44
"""Characters of a label; more does not fit beside a figure on a phone."""


@dataclass(frozen=True)
class LabeledGroup:
    """Runs of one setting, in the order of their seeds, with a label that tells it from the other groups."""

    label: str
    runs: tuple[ReportedRun, ...]

    @property
    def scores(self) -> dict[str, MeanStd]:
        """Final scores over seeds."""
        return SeedGroup(tuple(run.summary for run in self.runs)).scores


def labeled_groups(runs: Sequence[ReportedRun]) -> tuple[LabeledGroup, ...]:
    """Group runs as `group_by_setting` does."""
    groups = group_by_setting(runs, lambda run: run.summary)
    labels = _labels([group[0] for group in groups])
    return tuple(LabeledGroup(label, tuple(group)) for label, group in zip(labels, groups, strict=True))


def differences(groups: Sequence[LabeledGroup]) -> dict[str, list[str]]:
    """Find the settings that differ between groups: key -> value in each group."""
    settings = [_settings(group.runs[0]) for group in groups]
    keys = dict.fromkeys(key for flat in settings for key in flat)
    values = {key: [yaml_text(flat[key]) if key in flat else MISSING for flat in settings] for key in keys}
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def _settings(run: ReportedRun) -> dict[str, Any]:
    """Collect what a result depends on: all settings but the seed and how it was computed."""
    flat = run.summary.config.flat()
    return {key: value for key, value in flat.items() if key != "seed" and not key.startswith("engine.")}


def _labels(firsts: Sequence[ReportedRun]) -> list[str]:
    """Label each group by its first run."""
    labels = [_label(run, firsts) for run in firsts]
    labels = [label if labels.count(label) == 1 else run.name for label, run in zip(labels, firsts, strict=True)]
    labels = [label if len(label) <= LABEL_LIMIT else label[: LABEL_LIMIT - 1] + "…" for label in labels]
    return [f"{index}: {label}" if labels.count(label) > 1 else label for index, label in enumerate(labels, 1)]


def _label(run: ReportedRun, firsts: Sequence[ReportedRun]) -> str:
    """Name a run's cell of a table or point of a sweep, else its method with the settings that differ."""
    if run.label and [other.label for other in firsts].count(run.label) == 1:
        return run.label
    label = run.summary.name
    others = [_settings(other) for other in firsts if other is not run and other.summary.name == label]
    settings = _settings(run)
    differing = [key for key in settings if any(other.get(key) != settings[key] for other in others)]
    return " ".join([label, *(f"{key}={yaml_text(settings[key])}" for key in differing[:2])])

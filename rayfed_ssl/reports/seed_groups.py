"""Runs that differ in their seed alone, as one: mean, deviation and number."""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayfed_ssl.config.privacy import Privacy
from rayfed_ssl.config.recipes import flatten
from rayfed_ssl.config.schema import Config
from rayfed_ssl.formats import MeanStd, value_text
from rayfed_ssl.privacy.robust import LEFT_OUT
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.own_scores import OWN_COLUMNS, own_headline
from rayfed_ssl.reports.summary import Summary

PRIVACY = flatten({"privacy": Privacy().model_dump(mode="json")})
"""What a configuration without privacy leaves out."""

LABEL_LIMIT = 44
"""Characters of a label; more does not fit beside a figure on a phone."""


@dataclass(frozen=True)
class SeedGroup:
    """Runs of one setting, in the order of their seeds; in a report with a label that tells it from the others."""

    runs: tuple[Summary, ...]
    label: str = ""

    @property
    def seeds(self) -> tuple[int, ...]:
        """The runs' seeds."""
        return tuple(run.config.seed for run in self.runs)

    @property
    def scores(self) -> dict[str, MeanStd]:
        """Each score of the global encoder, or its mean over clients, over the runs that have it; then clients' own."""
        own = [own_headline(run.own) for run in self.runs]
        values = {name: [shares[name] for shares in own if name in shares] for name in OWN_COLUMNS}
        return _over_seeds(self.runs, Summary.headline) | _spreads(values)

    @property
    def left_out(self) -> dict[str, MeanStd]:
        """How many clients a robust rule left out of a round, over the runs that have such a rule."""
        return _spreads({n: [run.left_out[n] for run in self.runs if n in run.left_out] for n in LEFT_OUT})

    @property
    def minimum(self) -> dict[str, MeanStd]:
        """Each score of the lowest client, over the runs without a global encoder."""
        return _over_seeds([run for run in self.runs if "global" not in run.scores], Summary.minimum)


def _over_seeds(runs: Sequence[Summary], score_of: Callable[[Summary, str], float | None]) -> dict[str, MeanStd]:
    names = dict.fromkeys(name for run in runs for scores in run.scores.values() for name in scores)
    values = {name: [score for run in runs if (score := score_of(run, name)) is not None] for name in names}
    return _spreads(values)


def _spreads(values: Mapping[str, Sequence[float]]) -> dict[str, MeanStd]:
    return {name: MeanStd.of(scores) for name, scores in values.items() if scores}


def by_seed(runs: Iterable[Summary]) -> list[SeedGroup]:
    """Group runs that differ in their seed alone, in the order in which each setting first appears.

    Runs that have done other numbers of rounds are no draws of one score. Engine, frequency of scoring and the path of the
    data do not count, as no score depends on them. Runs that began with another run's encoder belong together if those runs
    do. A seed that comes again begins another group: it would count one draw twice.
    """
    groups: dict[tuple[str, int], list[Summary]] = {}
    repeats: Counter[tuple[str, int]] = Counter()
    for run in runs:
        setting = repr((run.rounds, _identity(run.config, run.fingerprint)))
        groups.setdefault((setting, repeats[setting, run.config.seed]), []).append(run)
        repeats[setting, run.config.seed] += 1
    return [SeedGroup(tuple(sorted(group, key=lambda run: run.config.seed))) for group in groups.values()]


def labeled(groups: Sequence[SeedGroup], names: Mapping[Path, tuple[str, str]]) -> tuple[SeedGroup, ...]:
    """Label groups with what a run is for in a study, or else with the runs' own name and what differs.

    Args:
        groups: Of runs.
        names: Each run's name, and what it is for ("" outside of studies), by its directory.
    """
    firsts = [names[group.runs[0].directory] for group in groups]
    given = [label for _, label in firsts]
    differing = [[f"{key}={text}" for key, text in each.items()][:2] for each in differing_settings(groups)]
    methods = {group.runs[0].name for group in groups}
    labels = []
    for group, label, settings in zip(groups, given, differing, strict=True):
        if not label or given.count(label) > 1:
            method = group.runs[0].name
            name = _common_name([names[run.directory][0] for run in group.runs]) or method
            label = " ".join([name, *[method] * (len(methods) > 1 and method not in name), *settings])
        labels.append(label)
    labels = [label if labels.count(label) == 1 else name for label, (name, _) in zip(labels, firsts, strict=True)]
    labels = [label if len(label) <= LABEL_LIMIT else label[: LABEL_LIMIT - 1] + "…" for label in labels]
    labels = [f"{index}: {label}" if labels.count(label) > 1 else label for index, label in enumerate(labels, 1)]
    return tuple(replace(group, label=label) for group, label in zip(groups, labels, strict=True))


def _common_name(names: Sequence[str]) -> str:
    """Give what the names of a setting's runs have in common, without the time that a name begins with."""
    name = names[0] if len(names) == 1 else re.sub(r"[-_ ]?(s|seed)?[-_]?$", "", os.path.commonprefix(names))
    return re.sub(r"^\d{8}-\d{6}(-\d{3})?-?", "", name)


def differing_settings(groups: Sequence[SeedGroup]) -> list[dict[str, str]]:
    """Find for each group the settings in which it differs from others of its method, those of privacy first."""
    settings, differing = [_settings(group.runs[0]) for group in groups], []
    for group, of_group in zip(groups, settings, strict=True):
        method = group.runs[0].name
        others = [flat for other, flat in zip(groups, settings, strict=True) if other.runs[0].name == method]
        keys = sorted(
            (key for flat in others for key in flat if any(each.get(key) != flat[key] for each in others)),
            key=lambda key: not key.startswith("privacy."),
        )
        texts = {key: value_text(of_group[key]) if key in of_group else "none" for key in dict.fromkeys(keys)}
        differing.append(texts)
    return differing


def _settings(run: Summary) -> dict[str, Any]:
    """Collect what a result depends on: all settings but the seed and how it was computed."""
    settings = PRIVACY | run.config.flat()
    return {key: value for key, value in settings.items() if key != "seed" and not key.startswith("engine.")}


def differences(groups: Sequence[SeedGroup], missing: str) -> dict[str, list[str]]:
    """Find the settings that differ between groups: key -> value in each group."""
    settings = [_settings(group.runs[0]) for group in groups]
    keys = dict.fromkeys(key for flat in settings for key in flat)
    values = {key: [value_text(flat[key]) if key in flat else missing for flat in settings] for key in keys}
    return {key: texts for key, texts in values.items() if len(set(texts)) > 1}


def _identity(config: Config, fingerprint: str) -> dict[str, Any]:
    settings = {key: value for key, value in config.dump().items() if key not in ("seed", "engine")}
    settings["data"] |= {"path": fingerprint}
    settings["evaluation"] |= {"every": None, "diagnostics": None}
    if config.model.start is not None:
        settings["model"] |= {"start": _origin(config.model.start)}
    return settings


def _origin(start: Path) -> Any:
    """Identify an encoder by the settings of its run and its name there, or by its path where there is no run."""
    run, encoder = (start, "global") if start.is_dir() else (start.parent.parent, start.stem)
    if not (run / "run.json").is_file():
        return str(start)
    record = RunRecord.open(run)
    return encoder, _identity(record.described_config(), record.manifest.data.fingerprint)

"""A study that begins with the best of another: what is taken, from which trial, and what is refused."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl.errors import ConfigError
from tests.tune.studies.swept import begin, result, write
from tune.studies.definition.files import load_study
from tune.studies.execution.directory import StudyDirectory
from tune.studies.results.best_settings import inherited_settings
from tune.studies.results.results import StudyResults
from tune.studies.results.summary import summarize_study
from tune.studies.run import StudyRequest

FIRST: dict[str, Any] = {
    "rows": {"plain": {}, "wide": {"set": {"training.batch": 16}}},
    "space": {"rounds": [1, 2]},
    "seeds": 2,
    "maximize": "knn",
}
"""Trials: plain 1, plain 2, wide 1, wide 2."""

SECOND: dict[str, Any] = {
    "space": {"method.weighting": ["samples", "uniform"]},
    "begin": {"sweep": "first", "where": {"row": "wide"}, "take": ["rounds"]},
}
BEST_IS_WIDE_2 = [(0.9, 0.9), (0.8, 0.8), (0.3, 0.3), (0.5, 0.3)]
"""Of all trials the best is plain."""


def finish(folder: Path, tree: Mapping[str, Any], scores: Sequence[Sequence[float]]) -> Path:
    """Fabricate a finished study without runs, with scores by trial and seed."""
    directory = begin(folder, tree, "first")
    study = directory.study
    trials = [
        result(study, number, point, each)
        for number, (point, each) in enumerate(zip(study.points(), scores, strict=True))
    ]
    results = StudyResults(name=study.name, title="", trials=trials, tables=[])
    (directory.path / "results.json").write_text(results.model_dump_json())
    directory.record.finished = "2026-01-01T00:00:00+00:00"
    directory.save()
    return directory.path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finish(tmp_path_factory.mktemp("first"), FIRST, BEST_IS_WIDE_2)


@pytest.fixture
def second(tmp_path: Path) -> Callable[..., str]:
    """Write the file of the second study: second(take=["rounds"])."""
    return lambda **changes: write(tmp_path, SECOND | {"begin": SECOND["begin"] | changes}, "second")


def test_the_best_trial_that_matches_by_its_mean_over_seeds_gives_its_settings(finished, second, tmp_path):
    asked = StudyRequest(second(), "sweep", out=tmp_path / "mine", begin=finished).describe()
    asked.create()
    origin = f"rounds=2: from the study first in {finished}, chosen by held-out training samples."
    assert origin in summarize_study(asked).remarks
    assert StudyDirectory.open(asked.path).study.settings["rounds"] == 2


def test_less_is_better_where_the_other_study_minimizes(second, tmp_path):
    fewest = {key: value for key, value in FIRST.items() if key != "maximize"} | {"minimize": "diag_uniformity"}
    assert inherited_settings(load_study(second()), finish(tmp_path, fewest, BEST_IS_WIDE_2))[0]["rounds"] == 1


def refused(file: str, begin: Path | None) -> str:
    with pytest.raises(ConfigError) as caught:
        inherited_settings(load_study(file), begin)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_needed_or_not_is_one_line(finished, second, tmp_path):
    plain = write(tmp_path, FIRST, "first")
    assert inherited_settings(load_study(plain), None) == ({}, "")
    assert "--begin" in refused(plain, finished)
    assert "takes rounds from the best trial of first" in refused(second(), None)
    assert "holds no study" in refused(second(), tmp_path)
    stranger = shutil.copytree(finished, tmp_path / "stranger")
    assert "is not a study that you have made here" in refused(second(), stranger)
    assert inherited_settings(load_study(second()), stranger, trust=True)[0] == {"rounds": 2}
    path = begin(tmp_path, FIRST, "first").path
    assert "is not finished: resume it with `rayfed-ssl sweep --resume" in refused(second(), path)


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        ({"sweep": "fourth"}, "holds the study first, but fourth is needed"),
        ({"where": {"row": "narrow"}}, "has no complete trial with row=narrow"),
        ({"where": {"roww": "wide"}}, "does not vary 'roww': did you mean 'row'?"),
        ({"take": ["round"]}, "does not vary 'round': did you mean 'rounds'?"),
    ],
)
def test_what_does_not_fit_is_named(finished, second, begin, message):
    assert message in refused(second(**begin), finished)

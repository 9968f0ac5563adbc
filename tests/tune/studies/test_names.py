"""No run changes its name: a run is found again by it, so each shipped study has the names that `run_names.json` digests."""

import hashlib
import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from tune.studies.definition.files import load_study, read_study_file, study_names
from tune.studies.definition.space import Range
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import TrialRun, run_of
from tune.studies.run import search_of

FILE = Path(__file__).with_name("run_names.json")
"""Study, size and row -> number of trials and seeds, and SHA-256 of their sorted names."""


def names_of(study: Study, seeds: tuple[int, ...]) -> list[str]:
    """Name the runs of all points of a grid, or of the corners of a search's space, each after the one it starts from."""
    if study.begin is not None:
        study = study.model_copy(update={"settings": study.settings | {"rounds": 10}})
    points = study.points() if study.search.name == "grid" else corners(study)
    return sorted(" ".join(chain(run_of(study, point, seed))) for point in points for seed in seeds)


def corners(study: Study) -> list[dict[str, float]]:
    ends = [parameter.ends for parameter in study.parameters.values() if isinstance(parameter, Range)]
    return [dict(zip(study.space.names, corner, strict=True)) for corner in product(*ends)]


def chain(run: TrialRun) -> list[str]:
    return [*(chain(run.first) if run.first else ()), run.name]


def shipped() -> Iterator[tuple[str, list[str]]]:
    for name in study_names("sweep"):
        study = load_study(name)
        yield f"sweep {name}", names_of(study, study.seeds)
    for name in study_names("reproduction"):
        for size in read_study_file(name, "reproduction")["sizes"]:
            yield f"reproduction {name} {size}", names_of(load_study(name, kind="reproduction", size=size), (0, 1, 2))
    for name in study_names("benchmark"):
        file = load_study(name, kind="benchmark")
        for row in file.rows:
            if file.rows[row].tune:
                yield f"benchmark {name} search {row}", names_of(load_study(search_of(file, row)), (file.tuning.seed,))
            yield f"benchmark {name} {row}", names_of(file.only([row], None), file.seeds)


@pytest.mark.slow
def test_every_run_of_every_shipped_study_keeps_its_name():
    found = {key: [len(names), hashlib.sha256("\n".join(names).encode()).hexdigest()] for key, names in shipped()}
    assert found == json.loads(FILE.read_text())
    assert sum(number for number, _ in found.values()) == 4963

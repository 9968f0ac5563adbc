"""Running a study that a command names: what is missing is run, and the results of all that is there are written.

After Ctrl-C or a crash the same call resumes it.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfed_ssl.errors import ConfigError
from tune.studies.definition.files import read_study_file
from tune.studies.definition.needed_data import absent, by_column, one_dataset
from tune.studies.definition.schema import slug
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import config_of
from tune.studies.definition.tuning import row_of, search_of
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.request import Say, StudyRequest
from tune.studies.results.results import StudyResults
from tune.studies.results.summary import store, write_results
from tune.studies.results.systems import ROWS, SEARCHES, opened, summarize_systems
from tune.studies.results.trial_results import best_of, read_results
from tune.studies.search.check import check_study


def run_request(request: StudyRequest, say: Say, on_ray_death: Say | None = None) -> StudyResults:
    """Run what a user asks for; `on_ray_death` as in `run_study`.

    Raises:
        ConfigError: The file or a setting does not fit, the directory holds another study, or a search found nothing.
    """
    study = request.load()
    if study.baseline is not None:
        return _Rows(request, study, say, on_ray_death).run()
    directory = resolve(request)
    for name, reason in directory.record.skipped.items():
        say(f"left out, {name}: {reason}")
    with directory.locked():
        _refuse_other(directory)
        directory.save()
        request.run(directory, say, on_ray_death)
    return write_results(directory)


def resolve(request: StudyRequest) -> StudyDirectory:
    """Describe the directory of a study without the cells whose data are missing; writes nothing."""
    study = request.load()
    one_dataset(study)
    missing = absent(study)
    skipped = by_column(study, missing)
    if len(missing) == len(study.points()):
        reasons = (f"{column}: {reason}" for column, reason in skipped.items())
        raise ConfigError(f"the data of no column of {request.name} are there", *reasons)
    file = read_study_file(request.name, request.kind)
    file["set"] = {"engine.executor": "local" if request.on_tune else "ray"} | (file.get("set") or {})
    seeds = {} if request.seeds is None else {"seeds": list(request.seeds)}
    more: dict[str, Any] = {"size": request.size, "skipped": skipped, "left_out": list(missing)}
    more |= {
        "only_rows": request.rows and list(request.rows),
        "only_columns": request.columns and list(request.columns),
    }
    return StudyDirectory.of(request.directory, study.name, file | seeds, request.settings, request.command, **more)


def _refuse_other(directory: StudyDirectory) -> None:
    """Keep one study from being written over another."""
    if (directory.path / "study.json").is_file():
        other, record = StudyDirectory.open(directory.path).record, directory.record
        if (other.name, other.file.get("title"), other.size) != (record.name, record.file.get("title"), record.size):
            size = f", {other.size} size" if other.size else ""
            raise ConfigError(
                f"{directory.path} holds {other.name} ({other.file.get('title')}{size}): name another directory with --out"
            )


@dataclass
class _Rows:
    """Runs each row of a study by itself: first the search for its settings, then all columns and seeds."""

    request: StudyRequest
    study: Study
    say: Say
    on_ray_death: Say | None

    def run(self) -> StudyResults:
        """Run the rows that are asked for."""
        names = list(self.study.axes["row"])
        for name in names:
            self._check(name)
        for name in names:
            self._compare(name, self._search(name) if self.study.rows[name].tune else {})
        directory = self.request.directory
        seeds = {name: len(row.study.seeds) for name, row in opened(directory / ROWS, self.study)}
        commands = {name: self.request.command_of(name, number) for name, number in seeds.items()}
        results = summarize_systems(directory, self.study, self.request.command, commands)

        def draw() -> tuple[list[str], list[str]]:
            from tune.studies.results.figures import draw_study

            return draw_study(self.study, results, directory)

        return store(results, directory, draw)

    @property
    def _seeds(self) -> list[int]:
        return list(self.study.seeds if self.request.seeds is None else self.request.seeds)

    def _check(self, name: str) -> None:
        """Refuse a row that cannot be run, before hours are spent on another."""
        if self.study.rows[name].tune:
            searched = self._directory(SEARCHES, name, search_of(self.study, name)).study
            for point in searched.points():
                config_of(searched, point, self.study.tuning.seed)
        row = self._directory(ROWS, name, row_of(self.study, name, {}, self._seeds)).study
        for point in row.points():
            config_of(row, point, 0)
        check_study(row)

    def _search(self, name: str) -> dict[str, Any]:
        """Run the search for a row's settings; returns the point that is best on the held-out samples."""
        self.say(f"search for {name}")
        search = self._directory(SEARCHES, name, search_of(self.study, name))
        self._run(search)
        best = best_of(read_results(search, search.study), search.study.goals)
        if best is None:
            raise ConfigError(
                f"no trial of {name} was completed: see {search.path / 'table.md'}, then run the command again"
            )
        return dict(best.point)

    def _compare(self, name: str, chosen: dict[str, Any]) -> None:
        """Run a row in all columns; seeds that it has already stay."""
        self.say(f"{name} on {', '.join(self.study.columns) or 'all seeds'}")
        path, seeds = self._path(ROWS, name), set(self._seeds)
        if (path / "study.json").is_file():
            seeds |= set(StudyDirectory.open(path).study.seeds)
        self._run(self._directory(ROWS, name, row_of(self.study, name, chosen, sorted(seeds))))

    def _path(self, kind: str, name: str) -> Path:
        return self.request.directory / kind / slug(name)

    def _directory(self, kind: str, name: str, file: dict[str, Any]) -> StudyDirectory:
        """Open or describe the study of a row; one with other points keeps the runs that it has."""
        path = self._path(kind, name)
        study = StudyDirectory.of(path, slug(name), file, self.study.overrides, self.request.command)
        if (path / "study.json").is_file():
            old = StudyDirectory.open(path, trust=self.request.trust)
            if old.record.file.get("title") != file["title"]:
                raise ConfigError(f"{path} holds {old.record.file.get('title')!r}: name another directory with --out")
            if (old.record.file, old.record.overrides) == (study.record.file, study.record.overrides):
                old.check_trusted()
                return old
        return study

    def _run(self, study: StudyDirectory) -> None:
        if study.is_complete() and (study.path / "results.json").is_file():
            return
        with study.locked():
            study.save()
            self.request.run(study, self.say, self.on_ray_death)
            write_results(study)

"""Running a study that a command names: what is missing is run, and the results of all that is there are written.

After Ctrl-C or a crash the same call resumes it.
"""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayfed_ssl.config.schema import allow_typed
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.records.run_lock import refuse_unwritable
from tune.studies.definition.files import VERBS, load_study, read_study_file
from tune.studies.definition.needed_data import absent, by_column, one_dataset
from tune.studies.definition.schema import ROW, StudyFile, slug
from tune.studies.definition.study import Study
from tune.studies.definition.trial_configs import THEN, config_of
from tune.studies.execution.directory import StudyDirectory
from tune.studies.execution.runner import Say, run_study, run_study_here
from tune.studies.results.best_settings import inherited_settings
from tune.studies.results.paired_differences import SEARCHES, read_searches
from tune.studies.results.results import StudyResults
from tune.studies.results.summary import write_results
from tune.studies.search.optuna_study import check_study


@dataclass(frozen=True)
class StudyRequest:
    """What a user asks of a command that runs a study.

    Attributes:
        name: What to run: a name or a file.
        kind: "sweep", "reproduction" or "benchmark".
        settings: Changes of all runs, "key=value".
        jobs: Parallel runs; 1 runs them in this process, one after the other, unless it is a sweep.
        address: A Ray to join.
        out: Where everything goes; None names a directory under ./runs.
        size: One of the file's sizes, for a study that has some.
        seeds: Which; None for the file's.
        rows: Only these, as `columns`; None for all.
        begin: The finished study that settings come from.
        trust: Whether to go on in a directory that somebody else has made.
        dry_run: Whether it is only described, so that modules that its file names are not imported without trust.
    """

    name: str
    kind: str
    settings: tuple[str, ...] = ()
    jobs: int | None = 1
    address: str | None = None
    out: Path | None = None
    size: str | None = None
    seeds: tuple[int, ...] | None = None
    rows: tuple[str, ...] | None = None
    columns: tuple[str, ...] | None = None
    begin: Path | None = None
    trust: bool = False
    dry_run: bool = False

    @property
    def on_tune(self) -> bool:
        """Whether runs are trials on Ray Tune."""
        return self.kind == "sweep" or self.jobs != 1 or self.address is not None

    @property
    def directory(self) -> Path:
        """Where everything goes."""
        stem = Path(self.name).stem
        return self.out or Path("runs") / (f"{stem}-{self.size}" if self.size else f"{self.kind}-{stem}")

    @property
    def command(self) -> str:
        """The command line that asks for it."""
        of_benchmark = self.kind == "benchmark"
        options: dict[str, Any] = {"--size": self.size, "--begin": self.begin}
        if self.seeds is not None and (of_benchmark or self.seeds != (0,)):
            options |= {"--seeds": len(self.seeds)} if of_benchmark else {"--seed": self.seeds}
        options |= {"--system" if of_benchmark else "--row": self.rows, "--column": self.columns, "--out": self.out}
        options |= (
            {} if self.kind == "sweep" else {"--jobs": self.jobs if self.on_tune else None, "--address": self.address}
        )
        words = ["rayfed-ssl", VERBS[self.kind], self.name]
        for option, value in options.items():
            values = value if isinstance(value, tuple) else () if value is None else (value,)
            words += [word for each in values for word in (option, str(each))]
        return shlex.join([*words, *self.settings])

    @property
    def resume_command(self) -> str:
        """The command line that resumes it."""
        return f"rayfed-ssl sweep --resume {shlex.quote(str(self.directory))}" if self.kind == "sweep" else self.command

    def load(self) -> Study:
        """Read the study, with the rows and columns that are asked for."""
        if self.seeds is not None and len(set(self.seeds)) < len(self.seeds):
            raise ConfigError(f"each seed counts once, got {', '.join(map(str, self.seeds))}")
        study = load_study(self.name, *self.settings, kind=self.kind, size=self.size)
        allow_typed([text.removeprefix(THEN) for text in study.overrides])
        return study.only(self.rows, self.columns).model_copy(update={"trusted": self.trust or not self.dry_run})

    def describe(self) -> StudyDirectory:
        """Describe the directory of a study, without the cells whose data are missing; writes nothing.

        Raises:
            ConfigError: The file or a setting does not fit, or no trial could give a value.
        """
        study, file = self.load(), read_study_file(self.name, self.kind)
        if self.kind == "sweep":
            inherited, origin = inherited_settings(study, self.begin, trust=self.trust)
            directory = self._of(study, file, inherited=inherited, inherited_from=origin)
            check_study(directory.study)
            return directory
        asked = {"only_rows": self.rows and list(self.rows), "only_columns": self.columns and list(self.columns)}
        file |= {} if self.seeds is None else {"seeds": list(self.seeds)}
        if self.kind == "benchmark":
            for name, search in read_searches(self.directory, study, trust=self.trust):
                chosen = [trial.point for trial in search.trials if trial.number == search.best]
                file["rows"][name] = (file["rows"][name] or {}) | ({"chosen": chosen[0]} if chosen else {})
            return self._of(study, file, **asked)
        one_dataset(study)
        missing = absent(study)
        skipped = by_column(study, missing)
        if len(missing) == len(study.points()):
            reasons = (f"{column}: {reason}" for column, reason in skipped.items())
            raise ConfigError(f"the data of no column of {self.name} are there", *reasons)
        file["set"] = {"engine.executor": "local" if self.on_tune else "ray"} | (file.get("set") or {})
        return self._of(study, file, size=self.size, skipped=skipped, left_out=list(missing), **asked)

    def _of(self, study: Study, file: dict[str, Any], **more: Any) -> StudyDirectory:
        directory = StudyDirectory.of(self.directory, study.name, file, self.settings, self.command, **more)
        return replace(directory, trusted=study.trusted)

    def run(self, say: Say, on_ray_death: Say | None = None) -> StudyResults:
        """Run what is missing and write the results; `on_ray_death` as in `run_study`.

        Raises:
            ConfigError: The file or a setting does not fit, the directory holds another study, or a search found nothing.
        """
        refuse_unwritable(self.directory)
        if self.kind == "benchmark":
            self._tune(say, on_ray_death)
        directory = self.describe()
        if self.kind == "sweep":
            directory.create()
        for name, reason in directory.record.skipped.items():
            say(f"left out, {name}: {reason}")
        return self._begin(directory, say, on_ray_death)

    def _tune(self, say: Say, on_ray_death: Say | None) -> None:
        """Run the search of each row that is tuned; a row that cannot be run is refused before any of them."""
        study, searches = self.load(), dict[str, StudyDirectory]()
        for name in study.axes[ROW]:
            parts = [study.only([name], None)]
            if study.rows[name].tune:
                path, file = self.directory / SEARCHES / slug(name), search_of(study, name)
                searches[name] = StudyDirectory.of(path, path.name, file, study.overrides, self.command)
                parts.append(searches[name].study)
            for part in parts:
                for point in part.points():
                    config_of(part, point, part.seeds[0])
                check_study(part)
        for name, directory in searches.items():
            say(f"search for {name}")
            if self._begin(directory, say, on_ray_death).best is None:
                table = directory.path / "table.md"
                raise ConfigError(f"no trial of {name} was completed: see {table}, then run the command again")

    def _begin(self, directory: StudyDirectory, say: Say, on_ray_death: Say | None) -> StudyResults:
        with directory.locked():
            _refuse_other(directory, trust=self.trust)
            directory.save()
            return self.run_in(directory, say, on_ray_death)

    def resume(self, say: Say, on_ray_death: Say | None = None) -> StudyResults:
        """Run the sweep in the directory `out` to its end, under more seeds where the settings say so."""
        directory = StudyDirectory.open(self.directory, trust=self.trust)
        if directory.study.kind != "sweep":
            raise ConfigError(
                f"{self.directory} holds a {directory.study.kind}: resume it with `{directory.record.command}`"
            )
        directory.check_trusted()
        for setting in self.settings:
            directory.add_seeds(setting)
        return self.run_in(directory, say, on_ray_death)

    def run_in(self, directory: StudyDirectory, say: Say, on_ray_death: Say | None = None) -> StudyResults:
        """Run a study that has begun to its end, and write its results."""
        if self.on_tune:
            run_study(directory, concurrency=self.jobs, address=self.address, say=say, on_ray_death=on_ray_death)
        else:
            run_study_here(directory, say)
        return write_results(directory)


def _refuse_other(directory: StudyDirectory, *, trust: bool) -> None:
    """Keep one study from being written over another, and runs of somebody else from being counted."""
    if (directory.path / "study.json").is_file():
        earlier = StudyDirectory.open(directory.path, trust=trust)
        earlier.check_trusted()
        other, record = earlier.record, directory.record
        if (other.name, other.file.get("title"), other.size) != (record.name, record.file.get("title"), record.size):
            size = f", {other.size} size" if other.size else ""
            raise ConfigError(
                f"{directory.path} holds {other.name} ({other.file.get('title')}{size}): name another directory with --out"
            )


def search_of(file: StudyFile, name: str) -> dict[str, Any]:
    """Write the study that tunes a row, on the first column."""
    row, columns = file.rows[name], list(file.columns.values())
    settings = file.settings | (columns[0].settings if columns else {}) | row.settings | file.tuning.settings
    return {
        "title": f"{file.title}: search for {name}",
        "recipe": row.recipe or file.recipe,
        "set": {key: value for key, value in settings.items() if key not in row.tune},
        "space": dict(row.tune),
        "seeds": [file.tuning.seed],
        "maximize": file.maximize,
        "minimize": file.minimize,
    }

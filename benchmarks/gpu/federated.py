"""Whole federated runs: the same hash on any number of actors and after a kill, and cells of the papers' tables."""

import multiprocessing
import os
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.meters import peak_memory
from benchmarks.gpu.setting import Outcome, Row, Setting
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.round_loop import ClientReport, Observer
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import summarize
from rayfed_ssl.runs import Result, resume, run
from tune.studies.definition.files import load_study
from tune.studies.definition.trial_configs import config_of

KILLED_IN = 2

CELLS = {
    "fedema": ("fedema-table1", "FedEMA τ=0.7", "CIFAR10 Non-IID"),
    "flesd": ("flesd-table1", "FLESD", "CIFAR10 α=1"),
    "fcl": ("fcl-table1", "Proposed (FCL)", "CIFAR10 Non-1"),
    "fedca": ("fedca-table1", "FedCA", "Non-IID CIFAR10 CNN"),
    "fedfoa": ("fedfoa-table1", "FedFoA", "Avg."),
}
"""Reproduction, row and column of the cells that run at the paper's size."""


def small(setting: Setting, *overrides: str) -> Config:
    """Configure a federated run of about a minute, whose steps are captured."""
    return setting.config(
        "flesd-table1-cifar10",
        *("method=fedavg", "public=null", "rounds=2", "clients.number=4", "partition=iid"),
        *("training.total_epochs=8", f"training.batch={setting.size(128, 4)}"),
        *(f"data.train_limit={setting.size(4_000, 80)}", f"data.test_limit={setting.size(1_000, 80)}"),
        *("evaluation.every=0", "evaluation.linear.epochs=1"),
        *overrides,
    )


def hash_in_process(setting: Setting, name: str) -> Outcome:
    """Run in this process."""
    return _hashed(f"in-process executor, {name}", partial(run, small(setting)), _empty(setting, f"hash-{name}"))


def hash_on_ray(setting: Setting, actors: int) -> Outcome:
    """Run on so many actors, which share the GPU."""
    import actors as ray_layer

    config = small(setting, "engine.executor=ray", f"engine.actors={actors}", "engine.cpus_per_actor=0.1")
    return _hashed(
        f"Ray, engine.actors={actors}", partial(ray_layer.run, config), _empty(setting, f"hash-ray-{actors}")
    )


def hash_after_kill(setting: Setting) -> Outcome:
    """Kill a run in the middle of a round by SIGKILL, resume it, and compare with one that was left alone."""
    whole = run(small(setting), _empty(setting, "whole"))
    directory = _empty(setting, "killed")
    child = multiprocessing.get_context("spawn").Process(target=run_to_kill, args=(small(setting).dump(), directory))
    child.start()
    child.join()
    if child.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the run was to be killed in round {KILLED_IN}, but ended with {child.exitcode}")
    row, resumed = _timed("kill -9, then resume", partial(resume, directory))
    return Outcome([row | {"equal": resumed.state_sha256 == whole.state_sha256}])


def run_to_kill(config: dict[str, Any], directory: Path) -> None:
    """Run until this process kills itself, after a client of round 2 is done."""

    class Killing(Observer):
        round = 0

        def on_round(self, round: int, cohort: Sequence[int]) -> None:
            self.round = round

        def on_client(self, report: ClientReport) -> None:
            if self.round == KILLED_IN:
                os.kill(os.getpid(), signal.SIGKILL)

    run(Config.load(config), directory, observer=Killing())


def cell(setting: Setting, name: str, seconds: float) -> Outcome:
    """Run a cell of `CELLS` at the paper's size; in a dry run at the cpu size, and shorter still."""
    table, row, column = CELLS[name]
    size = "cpu" if setting.dry_run else "paper"
    study, point = load_study(table, kind="reproduction", size=size), {"row": row, "column": column}
    overrides = setting.overrides
    if setting.dry_run:
        overrides += ["rounds=3", "training.total_epochs=null", "training.epochs=1"]
    elif setting.data is None and name == "fedca":
        overrides += ["public=fraction:0.1"]  # its STL-10 is not there either
    config = config_of(study.model_copy(update={"overrides": tuple(overrides)}), point, 0)
    return _segment(setting, name, config, str(study.cell(point).score), seconds)


def _segment(setting: Setting, name: str, config: Config, score: str, seconds: float) -> Outcome:
    """Run whole rounds for so long, one at least, from where the last segment ended."""
    directory, end, longest = setting.out / "runs" / name, time.monotonic() + seconds, 0.0
    if directory.exists() and not (directory / "run.json").exists():
        shutil.rmtree(directory)  # it was cut off before its record began
    while True:
        begin, last = time.monotonic(), _last_round(directory)
        affordable = int((end - begin) / longest) if longest else 1
        until = min(last + max(1, affordable), config.rounds)
        result = resume(directory, until=until) if directory.exists() else run(config, directory, until=until)
        now = time.monotonic()
        longest = max(longest, (now - begin) / max(1, until - last))
        if until == config.rounds or now + longest > end:
            return Outcome([_row(result, config, score, longest, setting.minutes)], until == config.rounds)


def _last_round(directory: Path) -> int:
    return RunRecord.open(directory, tables=False).last_round if directory.exists() else 0


def _row(result: Result, config: Config, score: str, longest: float, minutes: float) -> Row:
    """Describe a run that may not be done; its seconds are those of rounds, evaluation not included."""
    summary = summarize(result.record)
    done = f"{summary.rounds} of {config.rounds} rounds in {summary.seconds:.0f} s, the longest {longest:.0f} s"
    notes = [done]
    if longest > 60 * minutes:
        notes.append(f"a round takes longer than {minutes:g} minutes")
    for name in (score, "knn"):
        accuracy = summary.headline(name)
        notes += [] if accuracy is None else [f"{name} accuracy {100 * accuracy:.2f} %"]
    return {
        "case": f"{config.system}, {config.model.encoder}, batch {config.training.batch}",
        "rate": 3600 * summary.rounds / summary.seconds,
        "unit": "rounds/h",
        "memory": peak_memory(),
        "note": "; ".join(notes),
    }


def _empty(setting: Setting, name: str) -> Path:
    directory = setting.out / "runs" / name
    shutil.rmtree(directory, ignore_errors=True)
    return directory


def _hashed(case: str, work: Callable[[Path], Result], directory: Path) -> Outcome:
    return Outcome([_timed(case, partial(work, directory))[0]])


def _timed(case: str, work: Callable[[], Result]) -> tuple[Row, Result]:
    start = time.perf_counter()
    result = work()
    note = f"state_sha256 {result.state_sha256[:16]}, {time.perf_counter() - start:.1f} s"
    return {"case": case, "sha256": result.state_sha256, "memory": peak_memory(), "note": note}, result

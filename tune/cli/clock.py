"""`rayfed-ssl clock`: what a run takes in virtual time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tune.cli.options import RecipeAndSettings, Trust, load_config
from tune.terminal import echo, print_table

if TYPE_CHECKING:
    from rayfed_ssl.clock.schedule import Schedule


def clock(
    arguments: RecipeAndSettings = None,
    out: Annotated[Path | None, typer.Option(help="Directory for schedule.parquet and schedule.png.")] = None,
    trust: Trust = False,
) -> None:
    """Show a run's schedule in virtual time without training.

    rayfed-ssl clock fedprox clock=phones clients.number=40 clients.fraction=0.2 clock.policy=deadline rounds=50
    """
    from rayfed_ssl.config.choices import CLOCK_DEVICES, CLOCK_POLICY
    from rayfed_ssl.engine.federation import Federation
    from rayfed_ssl.engine.virtual_time import attach_schedule
    from rayfed_ssl.errors import ConfigError

    config = load_config(arguments, trust=trust)
    if config.clock is None:
        raise ConfigError("this recipe has no clock: add one, for example clock=phones clock.policy=deadline")
    if out is not None and (out / "run.json").exists():
        raise ConfigError(f"{out} is a run, which has a schedule of its own: name another directory")
    federation = Federation.open(config)
    schedule = attach_schedule(federation)
    assert schedule is not None, "there is a clock"
    policy, devices = CLOCK_POLICY.name_of(config.clock.policy), CLOCK_DEVICES.name_of(config.clock.devices)
    title = f"{config.system}: {policy} on {devices}"
    size, number = federation.task.cohort_size, len(schedule.clients)
    echo(f"{title}, {len(schedule.times):,} server steps, cohorts of {size:,} of {number:,} clients")
    _print(schedule)
    if out is not None:
        from rayfed_ssl.reports.clock_figure import draw_schedule
        from rayfed_ssl.storage.tables import write_table

        out.mkdir(parents=True, exist_ok=True)
        events = schedule.table()
        write_table(out / "schedule.parquet", events)
        echo(f"events: {out / 'schedule.parquet'}")
        echo(f"figure: {draw_schedule(events, title, out / 'schedule.png')}")


def _print(schedule: "Schedule") -> None:
    import numpy as np

    from rayfed_ssl.clock.devices import SECOND
    from rayfed_ssl.clock.schedule import GONE, STALE, USED, moved_bytes, work_time
    from rayfed_ssl.formats import duration, percent, size
    from rayfed_ssl.reports.clock_figure import waiting_spans

    waiting = np.diff(waiting_spans(schedule.table())).sum()
    tasks, steps = schedule.tasks, np.diff(schedule.times, prepend=0) / SECOND
    used, moved, work = tasks["end"] == USED, moved_bytes(schedule.work, tasks), work_time(tasks)
    stale = (tasks["step"] - 1 - tasks["version"])[used]
    rows = [
        ("virtual time", duration(schedule.times[-1] / SECOND)),
        ("a server step", f"{duration(np.median(steps))} ({duration(steps.min())} to {duration(steps.max())})"),
        ("waiting", f"{percent(waiting / max(1, schedule.times[-1]))} of it, in which no device is at work"),
        ("tasks", f"{len(used):,}"),
        ("uploads used", f"{used.sum():,}, at least {np.bincount(tasks['step'][used])[1:].min():,} a step"),
        (
            "dropped",
            f"{(tasks['end'] == GONE).sum():,} late, failed or away; {(tasks['end'] == STALE).sum():,} too stale",
        ),
        ("bytes", f"{size(moved.sum())}, of which {size(moved[~used].sum())} wasted"),
        (
            "training",
            f"{duration(work.sum() / SECOND)}, of which {percent(work[~used].sum() / max(1, work.sum()))} wasted",
        ),
        ("staleness", f"{stale.mean():.2f} on average, at most {stale.max()}"),
    ]
    print_table(("", ""), rows, text=2)

"""`rayfed-ssl sweep --dry-run`: say what a sweep would take, and leave nothing behind but caches."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rayfed_ssl.formats import size
from tune.sweeps.definition.check import check_sweep
from tune.sweeps.definition.files import load_sweep
from tune.sweeps.definition.spaces import Choice, Derived, Parameter, Range
from tune.sweeps.execution.cost_estimate import Reckoning, reckon


def print_dry_run(
    source: str, overrides: Sequence[str], begun_with: Mapping[str, Any], concurrency: int | None, as_json: bool
) -> None:
    """Reckon and print.

    Args:
        source: The sweep's name or file.
        overrides: The user's settings.
        begun_with: Settings from another sweep.
        concurrency: Trials at a time at most; None means as many as the machine holds.
        as_json: Print JSON.

    Raises:
        ConfigError: The sweep does not fit together, or no trial of it can be run.
    """
    sweep = load_sweep(source, *overrides)
    sweep = replace(sweep, settings=dict(sweep.settings) | dict(begun_with))
    check_sweep(sweep)
    reckoning = reckon(sweep, concurrency)
    if as_json:
        from tune.terminal import print_json

        print_json(_plain(reckoning))
    else:
        _print(reckoning, concurrency)


def _plain(reckoning: Reckoning) -> dict[str, Any]:
    sweep = reckoning.sweep
    kinds = [
        {"step": kind.name, **asdict(kind.cost), "runs": len(kind.runs), "at_once": kind.at_once}
        for kind in reckoning.kinds
    ]
    return {
        "name": sweep.name,
        "trials": reckoning.trials,
        "seeds": list(sweep.seeds),
        "runs": reckoning.runs,
        "rounds": reckoning.rounds,
        "upper_bound": sweep.adapts,
        "space": {one.name: _runs_over(one) for one in sweep.space.parameters},
        "measured": kinds,
        "at_once": min(kind.at_once for kind in reckoning.kinds),
        "bytes_up": reckoning.up,
        "bytes_down": reckoning.down,
        "hours": reckoning.hours,
        "impossible": reckoning.impossible,
    }


def _runs_over(parameter: Parameter) -> str:
    if isinstance(parameter, Choice):
        text = ", ".join(map(str, parameter.values))
    elif isinstance(parameter, Range):
        steps = f", steps of {parameter.step}" if parameter.step > 1 else ""
        kind = "whole numbers" if parameter.integer else "numbers"
        text = f"{kind} from {parameter.low:g} to {parameter.high:g}{', log' * parameter.log}{steps}"
    else:
        assert isinstance(parameter, Derived), "there is no other kind"
        text = f"follows: {parameter.formula}"
    for other, values in parameter.when.items():
        text += f"; where {other} is {' or '.join(map(str, values))}"
    return text


def _print(reckoning: Reckoning, concurrency: int | None) -> None:
    from tune.terminal import plain_console, print_table

    sweep, console = reckoning.sweep, plain_console()
    most = "at most " if sweep.adapts else ""
    console.print(f"{sweep.name}: {sweep.title}")
    console.print(
        f"{_count(reckoning.trials, 'trial')}, {_count(len(sweep.seeds), 'seed')}, {_count(reckoning.runs, 'run')} (equal "
        f"ones counted once), {most}{reckoning.rounds} rounds\n",
        soft_wrap=True,
    )
    print_table(("parameter", "runs over"), ((one.name, _runs_over(one)) for one in sweep.space.parameters), text=2)
    console.print()
    rows = []
    for kind in reckoning.kinds:
        cost = kind.cost
        cells = [f"{cost.seconds:.3g}", *(size(count or 0) for count in (cost.memory, cost.down, cost.up))]
        rows.append([kind.name, *cells, str(len(kind.runs)), str(kind.at_once)])
    print_table(("measured step", "s an epoch", "memory", "down", "up", "runs", "at once"), rows)
    for line in _sums(reckoning, most, concurrency):
        console.print(line, soft_wrap=True)


def _sums(reckoning: Reckoning, most: str, concurrency: int | None) -> list[str]:
    at_once = min(kind.at_once for kind in reckoning.kinds)
    limit = f" (--concurrency {concurrency})" if concurrency else ""
    both = f"{size(reckoning.up + reckoning.down)}, {size(reckoning.up)} of them up"
    lines = [
        f"\nbytes across clients' boundaries: {most}{both}; measured as in round 1: clients of FedCA, FCL, FedFoA and FedMD "
        "receive more later",
        f"client training: {most}{_hours(reckoning.hours)} with {_count(at_once, 'run')} at once{limit}; the server's steps "
        "and scoring come on top",
    ]
    if reckoning.sweep.search != "grid":
        lines.append("reckoned with points at random: what will be tried depends on results")
    lines += [f"impossible, {trial}: {reason}" for trial, reason in reckoning.impossible.items()]
    return lines


def _hours(hours: float) -> str:
    return f"{hours:.2g} hours" if hours >= 1 else f"{60 * hours:.2g} minutes"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"

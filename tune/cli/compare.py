"""`rayfed-ssl compare`: accuracy against bytes and rounds, over runs or over seeds."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rayfed_ssl.errors import ConfigError
from tune.cli.options import AsCsv, AsJson, AsLatex, form_of
from tune.terminal import echo, print_json, print_table

if TYPE_CHECKING:
    from rayfed_ssl.reports.seed_groups import SeedGroup
    from rayfed_ssl.reports.summary import Summary
    from rayfed_ssl.reports.table import Form


def compare(
    directories: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    figure: Annotated[Path | None, typer.Option(help="Draw accuracy over bytes here (.png, .svg or .pdf).")] = None,
    by_seed: Annotated[
        bool,
        typer.Option("--by-seed", help="Group runs that differ only in their seed: mean, standard deviation, n."),
    ] = False,
    target: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Add the round, bytes and virtual time that first come to this kNN."),
    ] = None,
    as_csv: AsCsv = False,
    as_latex: AsLatex = False,
    as_json: AsJson = False,
) -> None:
    """Compare runs: accuracy against bytes and rounds."""
    from rayfed_ssl.records.run_record import RunRecord
    from rayfed_ssl.reports import seed_groups as seeds
    from rayfed_ssl.reports.figures import draw_comparison
    from rayfed_ssl.reports.summary import digest_notes, error_note, score_differences, summarize
    from tune.cli.run_summary import remarks

    form = form_of(as_json, as_csv, as_latex)
    if target is not None and (by_seed or as_json):
        raise ConfigError("--target adds columns to the table of runs: leave --by-seed and --json out")
    records = [RunRecord.open(directory) for directory in _runs(directories)]
    summaries = [summarize(record) for record in records]
    names = {summary.directory: (summary.directory.name, "") for summary in summaries}
    groups = seeds.labeled(seeds.by_seed(summaries), names) if by_seed else ()
    drawn = None if figure is None else draw_comparison(summaries, figure)
    if as_json:
        print_json([_group_tree(group) for group in groups] if by_seed else [_tree(summary) for summary in summaries])
    else:
        _print(_groups_table(groups) if by_seed else _runs_table(summaries, target), form, 2 if by_seed else 1)
        lines = [] if by_seed else list(_beside_start(summaries))
        notes = [*digest_notes(records), error_note(summaries), score_differences(summaries)]
        for line in [*lines, *remarks(summaries), *(f"note: {note}" for note in notes if note)]:
            echo(line, err=form != "text")
    if drawn is not None:
        echo(f"figure: {drawn}", err=form != "text")


def _print(rows: "Sequence[Mapping[str, str]]", form: "Form", text: int) -> None:
    """Print rows by heading in a form; the first `text` columns of text are aligned left."""
    from rayfed_ssl.reports.table import Table, form_lines

    head, lines = list(rows[0] if rows else ()), [list(row.values()) for row in rows]
    if form == "text":
        print_table(head, lines, text=text)
    elif rows:
        for line in form_lines([Table.of("", head, lines)], form):
            echo(line)


def _runs(directories: "Sequence[Path]") -> "Sequence[Path]":
    """Leave out the sweeps and the like that `runs/*` names beside runs, and repeats; without a run they are an error."""
    others = [each for each in directories for name in ("study", "results") if (each / f"{name}.json").is_file()]
    runs = [each for each in directories if each not in others]
    if not runs:
        raise ConfigError(
            f"{others[0]} is a study, which `rayfed-ssl report` shows: name a directory with a run.json in it"
        )
    for each in dict.fromkeys(others):
        echo(f"note: {each} is left out: it is a study, which `rayfed-ssl report` shows", err=True)
    by_path = dict[Path, Path]()
    for each in runs:
        by_path.setdefault(each.resolve(), each)
    if len(by_path) < len(runs):
        echo("note: a run is named more than once: it is shown once", err=True)
    return list(by_path.values())


def _facts(summary: "Summary") -> dict[str, str]:
    """Give the columns that tables of runs and of groups of runs share."""
    from rayfed_ssl.reports.summary import partition_text

    return {
        "recipe": summary.recipe,
        "method": summary.name,
        "objective": summary.objective,
        "model": summary.models,
        "dataset": summary.dataset,
        "split": partition_text(summary.config),
        "rounds": f"{summary.rounds}x{summary.config.epochs}",
    }


def _runs_table(summaries: "Sequence[Summary]", target: float | None) -> "Sequence[Mapping[str, str]]":
    """Give a row for each run, by heading; a column that none has is left out."""
    from rayfed_ssl.evaluation.registry import ATTACK_SUCCESS
    from rayfed_ssl.formats import duration, number, percent, size
    from rayfed_ssl.privacy.robust import HONEST_LOST, HOSTILE_FOUND
    from rayfed_ssl.records.audit_rows import main_scores
    from rayfed_ssl.reports.own_scores import OWN_COLUMNS, own_columns
    from rayfed_ssl.reports.seed_groups import SeedGroup, differing_settings

    differing = differing_settings([SeedGroup((summary,)) for summary in summaries])
    audits = [main_scores(summary.audit) for summary in summaries]
    attacks = dict.fromkeys(name for audit in audits for name in audit)
    rows = [
        {"run": summary.directory.name + ("" if summary.finished else " (unfinished)")}
        | {
            "what differs": ", ".join([f"{key}={text}" for key, text in settings.items()][:3])
            + "..." * (len(settings) > 3)
        }
        | _facts(summary)
        | {
            "seed": str(summary.config.seed),
            "linear": percent(summary.headline("linear")),
            "minimum": percent(summary.minimum("linear")) if len(summary.scores) > 1 else "",
            "kNN": percent(summary.headline("knn")),
            "attack success": "" if (rate := summary.headline(ATTACK_SUCCESS)) is None else percent(rate),
            "hostile found": number(summary.left_out.get(HOSTILE_FOUND), missing=""),
            "honest lost": number(summary.left_out.get(HONEST_LOST), missing=""),
            "up": size(summary.bytes_up),
            "down": size(summary.bytes_down),
            "seconds": f"{summary.seconds:.0f}",
            "epsilon": "" if summary.epsilon is None else f"{summary.epsilon:.3g}",
            "virtual time": "" if summary.virtual_seconds is None else duration(summary.virtual_seconds),
            "wasted": "" if summary.virtual_seconds is None else size(summary.wasted_bytes),
        }
        | own_columns(summary.own)
        | _reaching(summary, target)
        | {name: number(audit[name]) if name in audit else "" for name in attacks}
        for summary, audit, settings in zip(summaries, audits, differing, strict=True)
    ]
    rare = {"what differs", "recipe", "attack success", "epsilon", "virtual time", "wasted", "virtual time until then"}
    rare |= {"hostile found", "honest lost", *OWN_COLUMNS}
    absent = {key for key in rare if not any(row.get(key) for row in rows)}
    return [{key: text for key, text in row.items() if key not in absent} for row in rows]


def _beside_start(summaries: "Sequence[Summary]") -> Iterator[str]:
    """Say where each run is beside its start, and what it warned of; and where its clients are beside the first run's."""
    from rayfed_ssl.reports.own_scores import own_beside

    for summary in summaries:
        warnings = [f"warning: {warning}" for warning in summary.warnings]
        for line in filter(None, [summary.start_line(), summary.attack_line(), *warnings]):
            yield f"{summary.directory.name}: {line}"
    for other in summaries[1:]:
        yield from own_beside(other, summaries[0])


def _reaching(summary: "Summary", target: float | None) -> dict[str, str]:
    """Give the columns of a target: when kNN first came to it."""
    from rayfed_ssl.formats import duration, percent, size

    if target is None:
        return {}
    point = summary.reaching(target)
    return {
        f"round of kNN {percent(target)}": "not reached" if point is None else str(point.round),
        "bytes until then": "" if point is None else size(point.bytes),
        "virtual time until then": "" if point is None or point.virtual is None else duration(point.virtual),
    }


def _groups_table(groups: "Sequence[SeedGroup]") -> "Sequence[Mapping[str, str]]":
    """Give mean, sample standard deviation and number over seeds, a row for each setting and score, by heading."""
    from rayfed_ssl.formats import number, percent

    return [
        {"run": group.label, "score": score}
        | _facts(group.runs[0])
        | {
            "mean": text(spread.mean),
            "std": text(spread.std),
            "n": str(spread.n),
            "minimum": group.minimum[score].text() if score in group.minimum else "",
            "seeds": ", ".join(map(str, group.seeds)),
        }
        for group in groups
        for text, scores in ((percent, group.scores), (number, group.left_out))
        for score, spread in scores.items()
    ]


def _tree(summary: "Summary") -> dict[str, Any]:
    return asdict(summary) | {
        "directory": str(summary.directory),
        "config": summary.config.dump(),
        "bytes_by_kind": {"/".join(key): size for key, size in summary.bytes_by_kind.items()},
        "linear": summary.headline("linear"),
        "linear_minimum": summary.minimum("linear"),
    }


def _group_tree(group: "SeedGroup") -> dict[str, Any]:
    return {
        "method": group.runs[0].name,
        "runs": [str(run.directory) for run in group.runs],
        "seeds": group.seeds,
        "scores": {name: asdict(spread) for name, spread in group.scores.items()},
        "minimum": {name: asdict(spread) for name, spread in group.minimum.items()},
        "left_out": {name: asdict(spread) for name, spread in group.left_out.items()},
    }

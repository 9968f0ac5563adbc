"""A study of which each row is tuned: a search for its settings on held-out samples, then the row at what was chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

from tune.studies.definition.schema import StudyFile


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
        **_goals(file),
    }


def row_of(file: StudyFile, name: str, chosen: Mapping[str, Any], seeds: Sequence[int]) -> dict[str, Any]:
    """Write the study that runs a row on all columns.

    Args:
        file: The whole study.
        name: The row.
        chosen: What the search chose, by key.
        seeds: Of the row on each column.
    """
    row = file.rows[name]
    settings = {**row.settings, **chosen}
    return {
        "title": f"{file.title}: {name}",
        "notes": list(file.notes),
        "recipe": file.recipe,
        "set": dict(file.settings),
        "rows": {name: row.model_dump(exclude_unset=True, exclude={"tune", "settings"}) | {"set": settings}},
        "columns": {key: column.model_dump(by_alias=True, exclude_unset=True) for key, column in file.columns.items()},
        "seeds": list(seeds),
        **_goals(file),
        "selection": "test",
    }


def _goals(file: StudyFile) -> dict[str, Any]:
    goals = {"maximize": [goal.score for goal in file.goals if goal.maximize]}
    return goals | {"minimize": [goal.score for goal in file.goals if not goal.maximize]}

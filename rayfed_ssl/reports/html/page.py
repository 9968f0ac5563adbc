"""What a page is made of; the template turns it into HTML."""

from dataclasses import dataclass

from markupsafe import Markup

from rayfed_ssl.evaluation.registry import ATTACK_SUCCESS, ATTACK_SUCCESS_KNN
from rayfed_ssl.reports.own_scores import OWN_COLUMNS
from rayfed_ssl.reports.table import Table


@dataclass(frozen=True)
class RenderedFigure:
    """A figure in the page."""

    title: str
    svg: Markup
    note: str
    origin: str
    table: Table | None
    wide: bool
    files: tuple[str, ...]


@dataclass(frozen=True)
class Card:
    """A number that matters, what it is, and what belongs to it."""

    title: str
    value: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageSection:
    """A part of the page, with its address (`key`), tables that open on demand (`folded`) and parts of its own.

    The verdict comes first, then the notices, each in a box.
    """

    key: str
    title: str
    verdict: str = ""
    notices: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()
    text: tuple[str, ...] = ()
    figures: tuple[RenderedFigure, ...] = ()
    tables: tuple[Table, ...] = ()
    folded: tuple[Table, ...] = ()
    parts: tuple["PageSection", ...] = ()


@dataclass(frozen=True)
class Page:
    """The whole report, with the command that made it and what a reader has to know first."""

    title: str
    lead: str
    command: str
    notices: tuple[str, ...]
    sections: tuple[PageSection, ...]


def score_title(score: str) -> str:
    """Name a score so that last and best are never confused."""
    base, best = score.removesuffix("_best"), score.endswith("_best")
    attack = {ATTACK_SUCCESS: "attack success, linear probe", ATTACK_SUCCESS_KNN: "attack success, kNN"}
    titles = {"knn": "kNN", "linear": "linear probe", "supervised": "supervised classifier"} | attack
    title = titles.get(base, base)
    if base in ("knn", "supervised", *attack, *OWN_COLUMNS):
        return title  # nothing is trained for the score, or it has no epochs to choose from
    return f"{title}, {'best' if best else 'last'} epoch"

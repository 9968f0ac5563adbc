"""What a page is made of; the template turns it into HTML."""

from dataclasses import dataclass

from rayfed_ssl.reports.html.figure import RenderedFigure
from rayfed_ssl.reports.html.tables import PageTable


@dataclass(frozen=True)
class Card:
    """A number that matters, what it is, and what belongs to it."""

    title: str
    value: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PageSection:
    """A part of the page, with its address (`key`), tables that open on demand (`folded`) and parts of its own."""

    key: str
    title: str
    cards: tuple[Card, ...] = ()
    text: tuple[str, ...] = ()
    figures: tuple[RenderedFigure, ...] = ()
    tables: tuple[PageTable, ...] = ()
    folded: tuple[PageTable, ...] = ()
    parts: tuple["PageSection", ...] = ()


@dataclass(frozen=True)
class Page:
    """The whole report, with the command that made it and what a reader has to know first."""

    title: str
    lead: str
    command: str
    notices: tuple[str, ...]
    sections: tuple[PageSection, ...]

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
    """A part of the page, with parts of its own.

    Attributes:
        key: Its address within the page.
        title: Its heading.
        cards: Numbers at its head.
        text: Paragraphs.
        figures: Figures.
        tables: Tables, shown at once.
        folded: Tables that open on demand.
        parts: Sections one level below.
    """

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
    """The whole report.

    Attributes:
        title: Its heading.
        lead: A line below the heading.
        command: The command that made it.
        notices: What a reader has to know first.
        sections: Its parts.
    """

    title: str
    lead: str
    command: str
    notices: tuple[str, ...]
    sections: tuple[PageSection, ...]

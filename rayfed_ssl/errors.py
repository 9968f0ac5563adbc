"""Errors that a user can repair: one line that says what is wrong, what was got and what to do."""

import difflib
from collections.abc import Iterable


def printable(text: str) -> str:
    """Escape, as `repr` does, what would end a line or command a terminal: names of files and clients may hold anything."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def is_utf8(text: str) -> bool:
    """Whether text can be written; Python takes bytes of a command line or a path that are no UTF-8 as surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class ConfigError(ValueError):
    """A configuration that cannot be run; each argument is a mistake, on a line of its own."""

    def __str__(self) -> str:
        return "\n".join(printable(str(mistake)) for mistake in self.args)


class UntrustedError(ConfigError):
    """A file names code that would be imported, and nobody has allowed it."""


class BusyError(ConfigError):
    """Another process is writing what this one wants to write."""


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message says which file, why, and what to do."""

    def __str__(self) -> str:
        return printable(super().__str__())


def reason(error: Exception) -> str:
    """Say in one printable line why a library could not read a file."""
    return plain(getattr(error, "strerror", None) or str(error))


def plain(text: str) -> str:
    """Write text that a file holds as one printable line of bounded length."""
    text = " ".join(text[:2000].split())[:300]
    return text if text.isprintable() else repr(text)[1:-1]


def nearest(word: str, choices: Iterable[str]) -> str:
    """Suggest the nearest choice, or list them all where none is near."""
    words = sorted(choices)
    names = {name.lower(): name for name in words}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.5)
    if close:
        return f": did you mean {names[close[0]]!r}?"
    return f": choose from {', '.join(words)}" if words else ": there is nothing to set here"

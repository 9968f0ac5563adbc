"""Messages: a line for each mistake, whatever names are in it."""

import pytest

from rayfed_ssl.errors import CheckpointError, ConfigError, printable

HOSTILE = "a\nerror: b\x1b[2J\x9b2J\u2028\u202e\udc80"
ESCAPED = r"a\nerror: b\x1b[2J\x9b2J\u2028\u202e\udc80"


def test_what_is_not_printable_is_escaped_as_repr_does():
    assert printable(HOSTILE) == ESCAPED == repr(HOSTILE)[1:-1]
    assert printable("mu = 0.5 ± 1 %, É, 数") == "mu = 0.5 ± 1 %, É, 数"


@pytest.mark.parametrize("error", [ConfigError, CheckpointError])
def test_a_name_does_not_end_the_line_of_its_mistake(error: type[Exception]):
    assert str(error(f"no encoder {HOSTILE}")) == f"no encoder {ESCAPED}"


def test_each_mistake_of_a_configuration_has_a_line():
    assert str(ConfigError("first", HOSTILE)) == f"first\n{ESCAPED}"

"""Numbers as text."""

import pytest

from rayfed_ssl.formats import MeanStd, duration, number, percent, size


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (size(999), "999 bytes"),
        (size(1_500_000), "1.50 MB"),
        (duration(59.94), "59.9 s"),
        (duration(150), "2 min 30 s"),
        (duration(3_720), "1 h 02 min"),
        (percent(0.12345), "12.35%"),
        (percent(None), "-"),
        (number(0.123456, "°"), "0.1235°"),
        (number(float("nan"), missing="–"), "–"),
    ],
)
def test_numbers_take_the_unit_that_fits(text: str, expected: str):
    assert text == expected


def test_the_sample_standard_deviation_is_taken():
    assert MeanStd.of([1.0, 2.0, 6.0]) == MeanStd(3.0, pytest.approx(7**0.5), 3)
    assert MeanStd.of([0.5]) == MeanStd(0.5, None, 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MeanStd(0.65, 0.1323, 3).text(n=True), "65.00 ± 13.23% (n = 3)"),
        (MeanStd(0.65, 0.1323, 3).text(symbol=False), "65.00 ± 13.23"),
        (MeanStd(0.5, None, 1).text(n=True), "50.00%"),
        (MeanStd(1.5e6, 2e3, 2).text("bytes"), "1.50 MB ± 2.00 kB"),
        (MeanStd(1.5e6, 0.0, 2).text("bytes", n=True), "1.50 MB (n = 2)"),
        (MeanStd(0.41234, 0.0123, 2).text(""), "0.4123 ± 0.012"),
    ],
)
def test_mean_and_deviation_are_written_by_unit(text: str, expected: str):
    assert text == expected

import statistics

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rayfed_ssl.clock.devices import (
    DAY,
    DEVICES,
    MINUTE,
    SECOND,
    Availability,
    Device,
    Even,
    Phones,
    Table,
    merged,
    uniform,
)
from rayfed_ssl.errors import ConfigError

HOUR = 3600 * SECOND


def test_draws_follow_from_their_counters_and_fill_the_unit_interval():
    draws = [uniform(7, client, number) for client in range(100) for number in range(50)]
    assert draws == [uniform(7, client, number) for client in range(100) for number in range(50)]
    assert len(set(draws)) == len(draws)
    assert 0 < min(draws) < 0.001 < 0.999 < max(draws) < 1
    assert statistics.fmean(draws) == pytest.approx(0.5, abs=0.02)  # 5 standard errors of 5,000 draws


@pytest.mark.parametrize("name", ["even", "phones", "hospitals"])
def test_a_device_depends_on_the_seed_and_the_client_alone(name: str):
    devices = DEVICES[name]()
    drawn = devices.draw([3, 5, 9], 1)
    assert drawn == devices.draw(range(10), 1)[3:10:2][:1] + devices.draw([5], 1) + devices.draw([9], 1)
    assert (drawn == devices.draw([3, 5, 9], 2)) == (name == "even")


def test_log_normal_devices_have_the_median_and_spread_that_they_declare():
    flops = [device.flops for device in Phones(flops=1e9, flops_sigma=0.5).draw(range(2001), 0)]
    assert statistics.median(flops) == pytest.approx(1e9, rel=0.06)  # 4 standard errors: 1.25 * 0.5 / sqrt(2001)
    below = sum(value < 1e9 * 2.718281828**-0.5 for value in flops) / len(flops)
    assert below == pytest.approx(0.159, abs=0.033)  # one sigma


def test_a_window_that_passes_midnight_is_one_window():
    device = Device(1.0, None, 1.0, 1.0, windows=((22 * HOUR, 8 * HOUR),))
    assert device.window(23 * HOUR) == (22 * HOUR, DAY + 6 * HOUR)
    assert device.window(DAY + 5 * HOUR) == (22 * HOUR, DAY + 6 * HOUR)
    assert device.window(DAY + 6 * HOUR) is None
    availability = Availability([device, Device(1.0, None, 1.0, 1.0)])
    assert availability.at(12 * HOUR).tolist() == [1]
    assert availability.at(22 * HOUR).tolist() == [0, 1]
    assert Availability([device]).next_start(12 * HOUR) == 22 * HOUR


def test_availability_does_not_depend_on_how_often_it_is_asked():
    devices = Phones().draw(range(50), 3)
    often, once = Availability(devices), Availability(devices)
    for time in range(0, 2 * DAY, HOUR):
        often.at(time)
    assert often.at(2 * DAY).tolist() == once.at(2 * DAY).tolist()
    by_client = [place for place, device in enumerate(devices) if device.window(2 * DAY)]
    assert once.at(2 * DAY).tolist() == by_client


CSV = "flops,down_mbit,up_mbit,failure,available\n1e9,10,5,0.1,08:00-12:00 22:00-06:00\n2e9,20,10,0,\n"


def test_a_table_gives_its_rows_from_csv_and_parquet(tmp_path):
    path = tmp_path / "devices.csv"
    path.write_text(CSV)
    drawn = Table(path=path).draw(range(40), 0)
    night = ((8 * HOUR, 4 * HOUR), (22 * HOUR, 8 * HOUR))
    assert set(drawn) == {Device(1e9, None, 10, 5, 0, 0.1, night), Device(2e9, None, 20, 10)}
    columns = {"flops": [1e9, 2e9], "down_mbit": [10.0, 20.0], "up_mbit": [5.0, 10.0], "failure": [0.1, 0.0]}
    parquet = tmp_path / "devices.parquet"
    pq.write_table(pa.table(columns | {"available": ["08:00-12:00 22:00-06:00", ""]}), parquet)
    assert Table(path=parquet).draw(range(40), 0) == drawn
    pq.write_table(pa.table(columns | {"available": ["08:00-12:00 22:00-06:00", None]}), parquet)
    assert Table(path=parquet).draw(range(40), 0) == drawn
    path.write_bytes(b"\xef\xbb\xbf" + CSV.encode())  # as Excel writes it
    assert Table(path=path).draw(range(40), 0) == drawn


def test_windows_that_touch_or_overlap_are_one():
    def minutes(*windows: tuple[int, int]) -> tuple[tuple[int, int], ...]:
        return tuple((start * MINUTE, length * MINUTE) for start, length in windows)

    assert merged(minutes((22 * 60, 120), (0, 360))) == minutes((22 * 60, 480))
    assert merged(minutes((60, 60), (90, 60), (300, 10))) == minutes((60, 90), (300, 10))
    assert merged(minutes((0, 600), (600, 840))) == ()
    assert merged(minutes((1380, 120))) == minutes((1380, 120))
    assert merged(()) == ()


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ({"flops": 0.0}, "flops or sample_seconds must be a number above 0, got 0"),
        ({"flops": None}, "flops or sample_seconds must be a number above 0, got None"),
        ({"down_mbit": float("nan")}, "down_mbit must be a number above 0, got nan"),
        ({"up_mbit": -1.0}, "up_mbit must be a number above 0, got -1"),
        ({"failure": float("nan")}, "failure must be a number from 0 to 1, got nan"),
        ({"windows": ((0, 0),)}, "windows must be .* within a day"),
    ],
)
def test_a_device_that_cannot_be_is_refused(device: dict, message: str):
    usual = {"flops": 1e9, "sample_seconds": None, "down_mbit": 1.0, "up_mbit": 1.0}
    with pytest.raises(ConfigError, match=f"a device's {message}"):
        Device(**usual | device)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no row"),
        ("flops,down_mbit,up_mbit\n", "has no row"),
        (
            "flops,down_mbit,up_mbit\n-1,1,1\n",
            "row 1: a device's flops or sample_seconds must be a number above 0, got -1.0",
        ),
        ("flops,down_mbit,up_mbit\n1,1,fast\n", "row 1: could not convert string to float: 'fast'"),
        ("flops,down_mbit,up_mbit\n1,inf,1\n", "row 1: a device's down_mbit must be a number above 0, got inf"),
        ("flops,down_mbit,up_mbit,failure\n1,1,1,2\n", "failure must be a number from 0 to 1, got 2.0"),
        ("flops,down_mbit,up_mbit,latency_ms\n1,1,1,-2\n", "latency_ms must be a number of at least 0, got -2.0"),
        ("flops,down_mbit,up_mbit,speed\n1,1,1,2\n", "has an unknown column 'speed'"),
        ("flops,down_mbit\n1,1\n", "has no column 'up_mbit'"),
        ("down_mbit,up_mbit\n1,1\n", "must have one of the columns 'flops' and 'sample_seconds'"),
        ("flops,down_mbit,up_mbit\n1,1\n", "row 1 has fewer cells than the head"),
        ("flops,down_mbit,up_mbit\n1,1,1,1\n", "row 1 has more cells than the head"),
        ("flops,down_mbit,up_mbit,available\n1,1,1,8-12\n", "times of day such as 08:00-12:00 .* got '8-12'"),
        ("flops,down_mbit,up_mbit,available\n1,1,1,08:00-24:30\n", "times of day"),
        ("flops,flops,down_mbit,up_mbit\n1,2,1,1\n", "has two columns of one name"),
        ("flops, down_mbit,up_mbit\n1,1,1\n", "has an unknown column ' down_mbit'"),
        ("flops,down_mbit,up_mbit\n" + "1,1,1\n" * 200_001, "has more than 200,000 rows"),
    ],
)
def test_a_bad_table_is_one_line(tmp_path, text: str, message: str):
    path = tmp_path / "devices.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        Table(path=path).draw([0], 0)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "devices.parquet").write_bytes(b"PAR1 no")
    (tmp_path / "devices.pickle").write_bytes(b"\x80\x04.")
    with pytest.raises(ConfigError, match=r"devices\.parquet cannot be read as a table of devices"):
        Table(path=tmp_path / "devices.parquet").draw([0], 0)
    with pytest.raises(ConfigError, match=r"none\.csv cannot be read .*No such file"):
        Table(path=tmp_path / "none.csv").draw([0], 0)
    with pytest.raises(ConfigError, match=r"is a \.csv or a \.parquet file, got .*devices\.pickle"):
        Table(path=tmp_path / "devices.pickle").draw([0], 0)


def test_even_devices_are_equal_and_always_available():
    assert len(set(Even().draw(range(9), 0))) == 1
    assert Availability(Even().draw(range(9), 0)).is_constant

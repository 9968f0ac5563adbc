"""What a record forgets when its run goes on."""

from collections.abc import Callable
from pathlib import Path

import pytest

from rayfed_ssl import Config, Observer, resume, run
from rayfed_ssl.records.run_record import RunRecord


def test_a_run_that_goes_on_from_an_earlier_round_keeps_no_encoders_of_its_end(
    tiny: Callable[..., Config], tmp_path: Path
):
    class StoppedError(Exception):
        pass

    class Stop(Observer):
        def on_round(self, round, cohort):
            raise StoppedError

    result = run(tiny("fedavg"), tmp_path / "run")
    encoder = result.directory / "encoders" / "global.safetensors"
    before = encoder.read_bytes()
    with pytest.raises(StoppedError):
        resume(result.directory, round=1, observer=Stop())
    assert not encoder.parent.exists()
    assert resume(result.directory).state_sha256 == result.state_sha256
    assert encoder.read_bytes() == before
    RunRecord.open(result.directory).truncate(2)  # nor does one that was whole
    assert not encoder.parent.exists()

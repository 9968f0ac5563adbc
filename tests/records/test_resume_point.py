"""From which round a run resumes where states are damaged or rows are missing."""

from pathlib import Path

import pytest

from rayfed_ssl.errors import CheckpointError
from rayfed_ssl.records.resume_point import last_whole_state
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.checkpoints import RunState
from tests.storage.test_checkpoints import round_with_files


def three_rounds(directory: Path) -> None:
    """Round 3 has a state of client 1 that round 2 does not have."""
    state: RunState | None = None
    for round, clients in ((1, (0, 1)), (2, (0,)), (3, (1,))):
        state = round_with_files(directory, round, clients, state)
        checkpoints.commit(state, directory)


@pytest.mark.parametrize("name", ["client-000001-000003.safetensors", "server-000003.safetensors", "round-000003.json"])
@pytest.mark.parametrize("content", [b"", None], ids=["empty", "missing"])
def test_a_damaged_round_is_skipped_on_resume(tmp_path: Path, name: str, content: bytes | None):
    three_rounds(tmp_path)
    assert last_whole_state(tmp_path, 3) == (checkpoints.latest(tmp_path), None)
    (tmp_path / name).unlink()
    if content is not None:
        (tmp_path / name).write_bytes(content)
    state, message = last_whole_state(tmp_path, 3)
    assert state.round == 2
    if (name, content) != ("round-000003.json", None):
        assert message is not None
        assert message.startswith(f"resuming from round 2, the last that is whole: {tmp_path / name} is ")


def test_a_round_later_than_the_record_is_skipped_on_resume(tmp_path: Path):
    three_rounds(tmp_path)
    state, message = last_whole_state(tmp_path, 2)
    assert state.round == 2
    assert message is not None
    assert message.endswith("the record is whole up to round 2, which is before round 3")
    with pytest.raises(
        CheckpointError, match="the record is whole up to round 1, which is before round 3: resume from an"
    ):
        last_whole_state(tmp_path, 1)

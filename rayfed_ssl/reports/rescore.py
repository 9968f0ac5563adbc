"""Score the encoders of a run again, with other settings or from another round."""

from pathlib import Path

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import Evaluation
from rayfed_ssl.environment import compute_threads
from rayfed_ssl.method import Encoder
from rayfed_ssl.records.run_record import RunRecord, encoders_of
from rayfed_ssl.storage import checkpoints


def rescore(
    directory: Path, *overrides: str, round: int | None = None, initial: bool = False
) -> tuple[Evaluation, ...]:
    """Evaluate a run's encoders by all protocols; nothing in the run's directory changes.

    Args:
        directory: The run record.
        overrides: Settings of `evaluation.*` and `engine.*`.
        round: A committed round; None takes the last.
        initial: Score the random encoder that the run began with instead.

    Raises:
        ConfigError: There is no such run.
        CheckpointError: The round is not on disk, or damaged.
    """
    record = RunRecord.open(directory)
    federation = Federation.open(record.config(*overrides))
    record.check(federation)
    if initial:
        state_round = 0
        encoders = {"initial": Encoder(federation.task.encoder, federation.task.initial_weights())}
    else:
        state = checkpoints.latest(record.checkpoints, round)
        state_round, encoders = state.round, encoders_of(federation, state, record.checkpoints)
    with compute_threads(federation.config.engine.threads):
        return tuple(federation.evaluate(encoder, name, state_round, final=True) for name, encoder in encoders.items())

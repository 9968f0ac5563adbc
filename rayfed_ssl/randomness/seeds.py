"""Seeds: every draw of a run follows from (run seed, round, client, purpose) and from nothing else.

Two methods with one seed see the same cohorts, shards and batches, so that their difference is paired.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch

SERVER = 2**31 - 1
"""The server's place in the seed sequence, where a client has its id."""


class Purpose(IntEnum):
    """What a seed is for; the numbers are part of every result and never change."""

    PARTITION = 1
    PUBLIC = 2
    INITIAL_MODEL = 3
    COHORT = 4
    TRAINING = 5
    EVALUATION = 6
    DROPOUT = 7
    METHOD = 8
    LABELS = 9
    DIAGNOSTICS = 10
    HELD_OUT = 11
    PRIVACY = 12
    AUDIT = 13
    CLOCK = 14
    ADVERSARY = 15
    HOSTILE = 16
    OWN_TEST = 17
    TUNING = 18


def derive_seed(run_seed: int, purpose: Purpose, *, round: int = 0, participant: int = 0) -> int:
    """Derive a 63-bit seed with numpy's SeedSequence, which keeps neighboring inputs apart."""
    sequence = np.random.SeedSequence([run_seed, int(purpose), round, participant])
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(seed: int) -> torch.Generator:
    """Make a CPU generator that starts from the seed; all draws of a run are made on the host (see `draws`)."""
    return torch.Generator().manual_seed(seed)


@contextmanager
def seeded_globally(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators of the CPU and of a device, and put them back afterwards."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        # Seeding all devices would record a stack trace for a CUDA that has not been started, at half a millisecond.
        torch.manual_seed(seed) if devices else torch.default_generator.manual_seed(seed)
        yield

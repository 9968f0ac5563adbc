"""What a fault does to a step, and the executor of one process that injects faults; `schedule` says when they happen."""

import copy
import errno
import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import ClientReport, Listener, ServerReport
from rayfed_ssl.engine.steps import Steps
from rayfed_ssl.faults.schedule import Fault, Faults, RandomFaults
from rayfed_ssl.storage.addresses import Directory
from rayfed_ssl.storage.checkpoints import RunState, Stored
from rayfed_ssl.trees import Tree, leaves, map_leaves


class FaultyLocalExecutor(LocalExecutor):
    """A `LocalExecutor` that injects faults."""

    def __init__(self, federation: Federation, *, faults: Iterable[Fault | RandomFaults]) -> None:
        super().__init__(federation)
        self._faults = Faults(faults, federation.config.rounds, federation.cohort)
        self._steps: FaultySteps = FaultySteps(federation)

    def train_clients(
        self, state: RunState, cohort: Sequence[int], directory: Directory, listener: Listener
    ) -> tuple[ClientReport, ...]:
        """Run one round's client steps."""
        self._faults.listener = listener
        return super().train_clients(state, cohort, directory, listener)

    def _update_client(self, state: RunState, client_id: int, directory: Directory) -> ClientReport:
        self._steps.faults = self._faults.for_step(state.round, client_id)
        report = super()._update_client(state, client_id, directory)
        self._faults.signal_driver(state.round)
        return report

    def update_server(self, state: RunState, cohort: Sequence[int], directory: Directory) -> ServerReport:
        """Aggregate the uploads of the clients that were just trained."""
        self._steps.faults = self._faults.for_server(state.round)
        report = super().update_server(state, cohort, directory)
        self._faults.warn_of_missed(state.round)
        return report


class FaultySteps(Steps):
    """Steps with the faults that are due in the next one."""

    def __init__(self, federation: Federation, faults: Sequence[Fault] = ()) -> None:
        federation = copy.copy(federation)
        federation.method = _FaultyMethod(federation.method, self)  # type: ignore[assignment]
        super().__init__(federation)
        self.faults = faults

    def store(self, state: Tree, directory: Directory, name: str) -> Stored:
        """Write a state, or fail as a write to a full disk does."""
        if any(fault.kind == "full-disk" for fault in self.faults):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
        return super().store(state, directory, name)


class _FaultyMethod:
    """A method with faults in its client step."""

    def __init__(self, method: Any, steps: FaultySteps) -> None:
        self._method, self._steps = method, steps

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def update_client(self, download: Any, state: Any, client: Any) -> Any:
        """Run the step with the faults."""
        for fault in self._steps.faults:
            if fault.kind == "slow":
                time.sleep(fault.seconds)
            if fault.kind == "raise":
                raise RuntimeError(f"injected by --inject {fault}")
        upload, next_state, metrics = self._method.update_client(download, state, client)
        for fault in self._steps.faults:
            if fault.kind in ("nan", "shape"):
                upload = _corrupt(upload, download, fault.kind)
        return upload, next_state, metrics


def _corrupt(upload: Any, download: Any, kind: str) -> Any:
    """Replace one tensor of floats of an upload, preferably one that came with the download, by NaNs or a longer one."""
    received = {path for path, _ in leaves(download)}
    floats = [
        (path, leaf) for path, leaf in leaves(upload) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    ]
    if not floats:
        raise RuntimeError("injected: there is no tensor of floats in the upload to corrupt")
    chosen = next((leaf for path, leaf in floats if path in received), floats[0][1])
    corrupted = torch.full_like(chosen, torch.nan) if kind == "nan" else chosen.new_zeros(chosen.numel() + 1)
    return map_leaves(lambda leaf: corrupted if leaf is chosen else leaf, upload)

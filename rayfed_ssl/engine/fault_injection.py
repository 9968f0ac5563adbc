"""What a fault does to a client's step; `rayfed_ssl.engine.fault_schedule` says when."""

import copy
import errno
import os
import time
from collections.abc import Sequence
from typing import Any

import torch

from rayfed_ssl.engine.fault_schedule import Fault
from rayfed_ssl.engine.federation import ClientResult, Federation
from rayfed_ssl.trees import leaves, map_leaves


def update_client(
    federation: Federation, round: int, client_id: int, download: Any, state: Any | None, faults: Sequence[Fault] = ()
) -> ClientResult:
    """Run a client's step, with faults injected; see `Federation.update_client`."""
    if faults:
        federation = copy.copy(federation)
        federation.method = _FaultyMethod(federation.method, faults)  # type: ignore[assignment]
    return federation.update_client(round, client_id, download, state)


def fill_disk(faults: Sequence[Fault], file: str) -> None:
    """Fail as a write to a full disk does, if that is due."""
    if any(fault.kind == "full-disk" for fault in faults):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), file)


class _FaultyMethod:
    """A method with faults in its client step."""

    def __init__(self, method: Any, faults: Sequence[Fault]) -> None:
        self._method, self._faults = method, faults

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    def update_client(self, download: Any, state: Any, client: Any) -> Any:
        """Run the step with the faults."""
        for fault in self._faults:
            if fault.kind == "slow":
                time.sleep(fault.seconds)
            if fault.kind == "raise":
                raise RuntimeError(f"injected by --inject {fault}")
        upload, next_state, metrics = self._method.update_client(download, state, client)
        for fault in self._faults:
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

"""FedEMA whose clients' steps fail where a file says so, in whatever process they run.

A line of the file is a kind, a round and a client: "raise 1 0". The kinds are raise, sleep (for an hour), nan and shape, for
which a tensor of the upload is not finite, or of another shape.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass as pydantic_dataclass

from rayfed_ssl.method import Client, Metrics
from rayfed_ssl.methods.fedema import FedEMA


@pydantic_dataclass(frozen=True, kw_only=True)
class FaultyFedEMA(FedEMA):
    """FedEMA with the faults of a file."""

    faults: Path

    def update_client(self, download: Any, state: Any, client: Client) -> tuple[Any, Any, Metrics]:
        """Run the step, and fail in it."""
        due = [str(client.round), str(client.id)]
        kinds = [kind for kind, *step in map(str.split, self.faults.read_text().splitlines()) if step == due]
        if "raise" in kinds:
            raise RuntimeError("asked to fail")
        if "sleep" in kinds:
            time.sleep(3600)
        upload, state, metrics = super().update_client(download, state, client)
        name, tensor = next((name, tensor) for name, tensor in upload.weights.items() if tensor.is_floating_point())
        spoiled = {"nan": torch.full_like(tensor, torch.nan), "shape": tensor.new_zeros(tensor.numel() + 1)}
        for kind in spoiled.keys() & kinds:
            upload = replace(upload, weights={**upload.weights, name: spoiled[kind]})
        return upload, state, metrics

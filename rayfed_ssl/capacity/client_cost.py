"""Memory and time of one client's step: measured in a process of its own, or estimated from the model.

    python -m rayfed_ssl.capacity.client_cost < configuration.json

runs the largest client's step and prints its cost as JSON. No result depends on it.
"""

import dataclasses
import json
import math
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import torch
from torch import Tensor

from rayfed_ssl.capacity.utilization import busy_share
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.gpu_memory import CONTEXT_BYTES
from rayfed_ssl.engine.result_cache import CachedResult
from rayfed_ssl.engine.server_init_cache import first_state
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.formats import size
from rayfed_ssl.machine.resources import free_memory
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import nbytes

ENGINE = ("precision", "channels_last", "compile", "deterministic", "capture", "threads")
"""Fields of `Config.engine` that the memory of a step depends on."""
WEIGHT_COPIES = 6  # weights, gradients, Adam's two moments, the download and the upload
FROZEN_COPIES = 2  # weights and the download
STEP_BYTES = 60_000_000  # torch's threads and kernels in a process's first step (docs/engine.md)
SAMPLES = 2  # blank samples that are sent through a model; batch normalization refuses one


@dataclass(frozen=True)
class StepCost:
    """Bytes and seconds of the largest client's step.

    Attributes:
        memory: What the process grows by.
        gpu_memory: Peak on the GPU, CUDA's context included; 0 on the CPU.
        state: Size of the client's state; None if unknown.
        seconds: Time of a local epoch; None if it was not measured.
        busy: Part of the time in which steps keep the GPU busy, in (0, 1]; None if unknown, and on the CPU.
    """

    memory: int
    gpu_memory: int = 0
    state: int | None = None
    seconds: float | None = None
    busy: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the step was run."""
        return self.seconds is not None


def step_cost(federation: Federation, device: str) -> StepCost:
    """Read the recorded cost of such a step on "cpu" or "cuda", which this process need not have, or estimate it."""
    return recorded(federation, device) or estimate(federation, device)


def estimate(federation: Federation, device: str) -> StepCost:
    """Estimate a step from the model: copies of its weights, and the activations of the views of a batch."""
    task, samples = federation.trained_task, largest_client(federation)[1]
    names = {task.encoder, *task.client_encoders}
    viewed = math.ceil((task.objective.num_views + task.small_area) * min(task.batch, samples))
    peak = max(_weight_bytes(task, name) + activation_bytes(task, name, viewed) for name in names)
    if device != "cuda":
        return StepCost(STEP_BYTES + peak)
    return StepCost(STEP_BYTES, peak + samples * federation.dataset.train.images[0].nbytes + CONTEXT_BYTES)


def _weight_bytes(task: Task, architecture: str) -> int:
    blank = task.blank(architecture)
    trained = nbytes(task.weights_of(blank))
    return WEIGHT_COPIES * trained + FROZEN_COPIES * (nbytes(blank.state_dict()) - trained)


def check_memory(federation: Federation) -> None:
    """Raise ConfigError if the largest client's step takes more memory than this machine has free; for the CPU."""
    if federation.task.device.type != "cpu":
        return
    cost, free = step_cost(federation, "cpu"), free_memory()
    if cost.memory > free:
        source = "as measured here" if cost.is_measured else "by estimate; `rayfed-ssl doctor --measure` measures it"
        raise ConfigError(
            f"the largest client's step takes {size(cost.memory)} of memory ({source}), but {size(free)} are free: lower "
            "training.batch or data.size, or take a smaller model"
        )


def activation_bytes(task: Task, architecture: str, batch: int) -> int:
    """Count what a batch of views stores for the backward pass, from a forward pass of two blank samples."""
    model = task.blank(architecture).to_empty(device="cpu").train()
    weights = {tensor.untyped_storage().data_ptr() for tensor in model.state_dict().values()}
    stored: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if (address := tensor.untyped_storage().data_ptr()) not in weights:
            stored[address] = tensor
        return tensor

    images = torch.zeros(SAMPLES, task.channels, task.size, task.size)
    # Shapes on the meta device would do, but importing torch's rules for it takes a second.
    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(images)
    width = 4 if task.precision.dtype == "fp32" else 2
    return sum(t.numel() * min(width, t.element_size()) for t in stored.values()) * batch // SAMPLES


def measure(federation: Federation) -> StepCost:
    """Run the largest client's step twice, without and with a state, and measure the peak.

    In a new process: memory that was freed before, and that the step takes again, is no growth.
    It is one local epoch, so on a GPU a step that is captured later, in a longer training, takes its graph's memory besides.
    """
    client_id, _ = largest_client(federation)
    download = federation.method.download(first_state(federation), client_id)
    before = _reset_peak(federation.task.device)
    first = federation.update_client(1, client_id, download, None)
    second = federation.update_client(1, client_id, download, first.state)
    after, gpu_memory, busy, device = _memory(), 0, None, federation.task.device
    # Mapped files count in both figures, are shared, and come and go: with the fewest of them the error is to the safe side.
    files = min(before["RssFile"], after["RssFile"])
    grown = max(0, after["VmHWM"] - files - (before["VmRSS"] - before["RssFile"]))
    if device.type == "cuda":
        gpu_memory = torch.cuda.max_memory_reserved(device) + CONTEXT_BYTES
        busy = busy_share(lambda: federation.update_client(1, client_id, download, second.state))
    return StepCost(grown, gpu_memory, nbytes(second.state), second.seconds / federation.config.epochs, busy)


def _reset_peak(device: torch.device) -> dict[str, int]:
    """Reset the peaks; returns the memory in use now."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with suppress(OSError):  # an earlier peak counts as ours then, which errs to the safe side
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again at what is in use now
    return _memory()


def _memory() -> dict[str, int]:
    """Memory of this process in bytes: now (VmRSS), at its peak (VmHWM), and that of the files it maps (RssFile)."""
    text = Path("/proc/self/status").read_text()
    return {name: int(kib) * 1024 for name, kib in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)}


def measure_apart(config: Config) -> StepCost:
    """Measure in a new process, and record the cost for later runs."""
    settings = json.dumps(one_epoch(config).dump())
    command = [sys.executable, "-P", "-m", "rayfed_ssl.capacity.client_cost"]
    process = subprocess.run(command, input=settings, capture_output=True, text=True, check=False)
    if process.returncode:
        last = (process.stderr.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
        reason = re.sub(r"^[\w.]+Error: ", "", last)
        raise ConfigError(f"the step of one client failed: {reason}")
    cost = StepCost(**json.loads(process.stdout.splitlines()[-1]))
    federation = Federation.open(config)
    record(federation, federation.task.device.type, cost)
    return cost


def one_epoch(config: Config) -> Config:
    """Shorten local training, which takes no less memory for it."""
    return config.model_copy(update={"training": config.training.lasting(1)})


def largest_client(federation: Federation) -> tuple[int, int]:
    """Find the client with most samples, and how many it has."""
    sizes = {client_id: len(rows) for client_id, rows in federation.shards.items()}
    return max(sizes.items(), key=lambda item: (item[1], -item[0]))


def recorded(federation: Federation, device: str) -> StepCost | None:
    """Find what was measured for such a step on such a machine."""
    return _cached(federation, device).read()


def record(federation: Federation, device: str, cost: StepCost) -> None:
    """Keep a measurement for later runs."""
    _cached(federation, device).write(cost)


def _cached(federation: Federation, device: str) -> CachedResult[StepCost]:
    settings = federation.config.dump()
    facts = {
        **{key: settings[key] for key in ("method", "objective", "model", "clients", "training")},
        "engine": {key: settings["engine"][key] for key in ENGINE},
        "device": device,
        "shape": federation.dataset.train.shape,
        "samples": (federation.num_public, largest_client(federation)[1]),
    }
    return CachedResult(platformdirs.user_cache_path("rayfed-ssl") / "steps", facts, StepCost)


def main() -> None:
    """Measure what standard input configures."""
    config = Config.load(json.load(sys.stdin))
    torch.set_num_threads(config.engine.threads)
    federation = Federation.open(config)
    sys.stdout.write(json.dumps(dataclasses.asdict(measure(federation))) + "\n")


if __name__ == "__main__":
    main()

"""From a configuration and its data to the task that all participants share."""

import os
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor, nn

from rayfed_ssl.config.choices import OBJECTIVE
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import own_function
from rayfed_ssl.data.image_store import Dataset
from rayfed_ssl.data.view_recipes import SMALLEST, OwnView, SmallCrops, views_named
from rayfed_ssl.errors import ConfigError, reason
from rayfed_ssl.foreign import plugins
from rayfed_ssl.models import encoder_info
from rayfed_ssl.models.precision import choose_precision
from rayfed_ssl.models.pretrained import Start, published
from rayfed_ssl.models.vit import VisionTransformer, patch_size
from rayfed_ssl.objectives import Supervised
from rayfed_ssl.storage.saved_encoders import read_start
from rayfed_ssl.training.captured import Captures
from rayfed_ssl.training.graphs import CudaGraphs
from rayfed_ssl.training.task import Task
from rayfed_ssl.trees import Weights


def _device(name: str, cpu: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if cpu == "native" and torch.cuda.is_available() else "cpu")
    if name.partition(":")[0] not in ("cpu", "cuda"):
        raise ConfigError(f"engine.device must be auto, cpu, cuda or cuda:N, got {name!r}")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        raise ConfigError(f"engine.device={name} is not on this machine: take cpu or auto") from None
    return device


def build_task(config: Config, dataset: Dataset) -> Task:
    """Build the task. The encoder that a run starts from is read only where weights are drawn."""
    channels, height, width = dataset.train.shape
    if height != width:
        raise ConfigError(f"images must be square, got {height}x{width} pixels: set data.size")
    size = config.model.image_size or height
    if size > height:
        raise ConfigError(
            f"model.image_size={size} is more than the images' {height} pixels: raise data.size or leave it out"
        )
    for name in (config.model.encoder, *(config.clients.models or ())):
        encoder_info(name)
    objective, engine = config.objective, config.engine
    if objective.fixed_head and config.model.projection_dim is not None:
        name = OBJECTIVE.name_of(objective)
        raise ConfigError(f"model.projection_dim has no meaning for objective={name}: remove it")
    if isinstance(objective, Supervised):
        objective = replace(objective, num_classes=dataset.train.num_classes)
    device, views = _device(engine.device, engine.cpu), views_named(views_of(config, dataset))
    small = _sized(config.training.small_crops, size)
    _set_up(device, engine.deterministic)
    is_captured = device.type == "cuda" and engine.capture == "auto" and not isinstance(views.first, OwnView)
    task = Task(
        encoder=config.model.encoder,
        client_encoders=config.clients.models or (),
        stem=config.model.stem,
        projection_dim=config.model.projection_dim,
        channels=channels,
        size=size,
        views=small.enlarged(views) if small else views,
        small_crops=small,
        objective=objective,
        optimizer=config.training.optimizer,
        schedule_rounds=config.training.schedule_rounds,
        rounds=config.rounds,
        fraction=config.clients.fraction,
        epochs=config.epochs,
        batch=config.training.batch,
        drop_last=config.training.drop_last,
        device=device,
        precision=choose_precision(
            device, engine.precision, channels_last=engine.channels_last, compile=engine.compile
        ),
        seed=config.seed,
        captures=Captures(CudaGraphs(device)) if is_captured else None,
    )
    for name in _architectures(task):
        blank = task.blank(name)  # an encoder that cannot take these images says so now, not in round 1
        if objective.needs_patches and not isinstance(blank.encoder, VisionTransformer):
            raise ConfigError(
                f"objective={OBJECTIVE.name_of(objective)} hides patches from a vision transformer, got encoder {name}: "
                "take model.encoder=vit-tiny, vit-small or vit-micro"
            )
        if small:
            _check_takes(blank.encoder, name, torch.zeros(2, channels, small.size or size, small.size or size))
    if config.model.is_random:
        return task
    return replace(task, read_start=cache(partial(_fitting_start, config.model.start, task)))


def _sized(crops: SmallCrops | None, size: int) -> SmallCrops | None:
    """Choose the side of small crops where none is given: 3/7 of the views', in patches of our vision transformers."""
    if crops is None:
        return None
    side = crops.size or max(1, round(3 / 7 * size / patch_size(size))) * patch_size(size)
    if side < SMALLEST:
        raise ConfigError(f"training.small_crops needs pictures of 8 pixels or more a side, got {size}: leave it out")
    if not side < size:
        raise ConfigError(f"training.small_crops.size must be below the views' {size} pixels, got {side}: lower it")
    return replace(crops, size=side)


def _check_takes(encoder: nn.Module, name: str, crops: Tensor) -> None:
    """Refuse small crops that an encoder cannot take, by a pass of blank ones."""
    try:
        with torch.no_grad():
            encoder.to_empty(device="cpu").eval()(crops)
    except (AssertionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"encoder {name} takes no small crops of {crops.shape[-1]} pixels ({reason(error)}): change "
            "training.small_crops.size or take another encoder"
        ) from None


def _set_up(device: torch.device, deterministic: bool) -> None:
    """Set this process up for a device; on others than CUDA there is nothing to set.

    Kernels of other versions of CUDA sum in other orders, and those of other GPUs may: see `engine.arithmetic`.

    Args:
        device: Where the process computes.
        deterministic: Whether to take deterministic kernels and full float32, or the fastest kernels and TF32 convolutions.
    """
    if device.type != "cuda":
        return
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # costs a write each
    torch.backends.cudnn.benchmark = not deterministic
    # Convolutions alone: losses multiply unit vectors by a temperature's inverse, which TF32's three digits do not survive.
    # Through the older of two interfaces: after the newer one torch.compile, which reads the older one, fails.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = not deterministic


def _architectures(task: Task) -> list[str]:
    return sorted({task.encoder, *task.client_encoders})


def _fitting_start(path: Path | None, task: Task) -> Start:
    """Read what the run starts from, or fetch what a library has published, and refuse what it cannot start from."""

    def weights(name: str) -> Weights:
        return {f"encoder.{key}": value for key, value in task.blank(name).encoder.state_dict().items()}

    if path is None:
        plugins.check_allowed("model.pretrained", task.encoder, "fetch weights")
        start = published(task.encoder, channels=task.channels, size=task.size)
    else:
        start = read_start(path, task.encoder, weights(task.encoder))
    for name in _architectures(task):
        start.check(name, weights(name))
    return start


def views_of(config: Config, dataset: Dataset) -> str:
    """Name the views of a run: those that its configuration names, or else the dataset's own.

    Raises:
        ConfigError: There are no such views, or what is named as a user's own is no function that draws them.
    """
    views = config.training.views or default_views(config.data.name, dataset.train.shape[1])
    if isinstance(first := views_named(views).first, OwnView):
        own_function(first.function)
    return views


def default_views(dataset: str, size: int) -> str:
    """Name the views of a dataset: Orchestra's mild ones up to 64 pixels, FLESD's above, and others for the tiny digits."""
    if dataset == "digits":
        return "digits"
    return "orchestra" if size <= 64 else "flesd-imagenet"

"""FLESD's whole distillation against a second one, written step by step from the facts about paper and code."""

from collections import deque
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rayfed_ssl.data.shards import Shard
from rayfed_ssl.method import Server
from rayfed_ssl.methods import FLESD, flesd
from rayfed_ssl.models import Model
from rayfed_ssl.training.task import Task
from tests.methods.conftest import Open
from tests.methods.steps import linear
from tests.tensors import seeded, unit_rows

NUM_PUBLIC = 45
"""Not a multiple of a batch of 8: five batches an epoch, five samples left out."""


@pytest.fixture
def task(open_tiny: Open) -> Task:
    """With views that differ, so that swapping them is noticed."""
    return open_tiny("flesd", "training.views=orchestra").task


@pytest.fixture
def public(open_tiny: Open) -> Shard:
    samples = open_tiny("flesd")._server_public
    assert len(samples) == NUM_PUBLIC
    return samples


@pytest.fixture
def ensembled() -> Tensor:
    return flesd.ensemble([flesd.sharpen(flesd.similarity(unit_rows(NUM_PUBLIC, 4, 9).float()), 0.2)])


def model() -> Model:
    return linear(dim=6)


def naive_distil(method: FLESD, ensembled: Tensor, public: Shard, task: Task, generator: torch.Generator, size: int):
    """Steps in the code's order: q, momentum, k, enqueue, skip while the queue is stale, logits, targets, step."""
    student, momentum = model(), model()
    optimizer = torch.optim.Adam(student.parameters(), lr=method.distil_lr, weight_decay=method.distil_weight_decay)
    rows = torch.randn(size, 6, generator=generator)
    queue: deque[tuple[Tensor, int]] = deque(((row / row.norm(), 0) for row in rows), maxlen=size)
    tau_s = method.student_temperature or method.temperature
    epochs, enqueued = [], 0
    for _ in range(method.distil_epochs):
        order = torch.randperm(len(public), generator=generator).tolist()
        if method.refill == "epoch":
            enqueued = 0
        losses = []
        for start in range(0, len(order) - method.distil_batch + 1, method.distil_batch):
            batch = order[start : start + method.distil_batch]
            images = public.images[public.rows[batch]]
            view = task.augment(images, task.views.first, generator)
            queries = [z / z.norm() for z in student(view)[1]]
            with torch.no_grad():
                for mu, theta in zip(momentum.parameters(), student.parameters(), strict=True):
                    mu.copy_(method.momentum * mu + (1 - method.momentum) * theta)
                view = task.augment(images, task.views.second, generator)
                keys = [z / z.norm() for z in momentum(view)[1]]
            queue.extend(zip(keys, batch, strict=True))
            enqueued += len(batch)
            if enqueued <= size:
                continue
            divergences = []
            for query, sample in zip(queries, batch, strict=True):
                anchors = [(k, j) for k, j in queue if not (method.exclude_self and j == sample)]
                p = torch.stack([ensembled[sample, j] for _, j in anchors])
                p = p / p.sum()
                q = torch.stack([(query @ k / tau_s).exp() for k, _ in anchors])
                q = q / q.sum()
                divergences.append((p * (p / q).log()).sum())
            loss = torch.stack(divergences).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        epochs.append(losses)
    return student, momentum, epochs


CASES = {
    "refilled in every epoch": FLESD(queue_size=24, distil_batch=8, refill="epoch"),
    "refilled once": FLESD(queue_size=24, distil_batch=8, refill="first"),
    "self excluded": FLESD(queue_size=16, distil_batch=8, refill="first", exclude_self=True),
    "student temperature": FLESD(queue_size=16, distil_batch=8, temperature=0.2, student_temperature=0.5),
    "no momentum": FLESD(queue_size=16, distil_batch=8, momentum=0.0, distil_weight_decay=0.1),
}


@pytest.mark.parametrize("name", CASES)
def test_distillation_goes_step_by_step_as_the_papers(name: str, task: Task, public: Shard, ensembled: Tensor):
    method = replace(CASES[name], distil_epochs=3)
    student, momentum = model(), model()
    metrics = method.distil(student, momentum, ensembled, Server(1, public, task, seeded()))
    expected_student, expected_momentum, epochs = naive_distil(
        method, ensembled, public, task, seeded(), method.queue_size
    )
    assert metrics["distil_steps"] == sum(len(losses) for losses in epochs)
    # float32, and some ten steps of 1e-3 by Adam, each off by its relative rounding.
    for found, expected in ((metrics["distil_loss_first"], epochs[0]), (metrics["distil_loss"], epochs[-1])):
        assert found == pytest.approx(sum(expected) / len(expected), rel=1e-4)
    for found, expected in ((student, expected_student), (momentum, expected_momentum)):
        for (key, value), other in zip(found.state_dict().items(), expected.state_dict().values(), strict=True):
            torch.testing.assert_close(value, other, rtol=1e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")
    moved = (student.projector.weight - model().projector.weight).abs().mean()
    assert moved > 1e-3


@pytest.mark.parametrize(
    ("num_public", "queue", "batch", "epochs", "refill", "steps"),
    [
        (45, 24, 8, 3, "epoch", 3 * (5 - 3)),
        (45, 24, 8, 3, "first", 3 * 5 - 3),
        (40, 24, 8, 3, "epoch", 3 * (5 - 3)),
        (45, 32, 8, 2, "epoch", 2 * (5 - 4)),
        (45, 2048, 8, 2, "epoch", 2 * (5 - 4)),  # the queue shrinks to 32
        (45, 30, 8, 2, "first", 2 * 5 - 3),  # and to a multiple of the batch: 24
        (17, 2048, 8, 4, "epoch", 4 * (2 - 1)),
        (16, 8, 8, 1, "first", 2 - 1),
        (45, 16, 16, 2, "epoch", 2 * (2 - 1)),
        (45, 32, None, 2, "first", 2 * 11 - 8),  # a batch of 4 leaves 8 batches or more
    ],
)
def test_the_number_of_steps(
    task: Task, public: Shard, num_public: int, queue: int, batch: int | None, epochs: int, refill: str, steps: int
):
    method = FLESD(queue_size=queue, distil_batch=batch, distil_epochs=epochs, refill=refill)
    some = Shard(public.images, public.rows[:num_public])
    ensembled = torch.rand(num_public, num_public, generator=seeded()) + 0.1
    metrics = method.distil(model(), model(), ensembled, Server(1, some, task, seeded()))
    assert metrics["distil_steps"] == steps

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.evaluation.linear_probe import LinearProbe, ProbeResult
from tests.tensors import seeded

torch.set_num_threads(1)

Data = tuple[Tensor, Tensor]
SHORT = LinearProbe(lr=0.3, batch=16, epochs=9, milestones=(4, 7), standardize=False)


def blobs(num: int, seed: int, spread: float = 1.5) -> tuple[Tensor, Tensor]:
    """Three overlapping clusters in five dimensions, far from the origin."""
    generator = seeded(seed)
    labels = torch.randint(3, (num,), generator=generator)
    centers = torch.tensor([[3.0, 0, 0, 1, 0], [0, 2, 0, 0, 1], [1, 0, 4, 0, 0]]) + 2
    return (centers[labels] + spread * torch.randn(num, 5, generator=generator)).double(), labels


def reference(probe: LinearProbe, train: Data, test: Data, generator: torch.Generator) -> tuple[float, ...]:
    """The same protocol with torch's layer, loss, optimizer and schedule."""
    (train, train_labels), (test, test_labels) = train, test
    layer = nn.Linear(train.shape[1], 3, dtype=train.dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(3, train.shape[1], generator=generator) * probe.init_std)
        layer.bias.zero_()
    optimizer: torch.optim.Optimizer
    if probe.optimizer == "adam":
        optimizer = torch.optim.Adam(layer.parameters(), probe.lr, weight_decay=probe.weight_decay)
    else:
        optimizer = torch.optim.SGD(layer.parameters(), probe.lr, probe.momentum, weight_decay=probe.weight_decay)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, list(probe.milestones), probe.decay)
    accuracies = []
    for _ in range(probe.epochs):
        order = torch.randperm(len(train), generator=generator) if probe.shuffle else torch.arange(len(train))
        for index in order.split(probe.batch):
            optimizer.zero_grad()
            F.cross_entropy(layer(train[index]), train_labels[index]).backward()
            optimizer.step()
        schedule.step()
        accuracies.append(float((layer(test).argmax(1) == test_labels).double().mean()))
    return accuracies[-1], max(accuracies), float(F.cross_entropy(layer(train), train_labels).detach())


SGD = [{}, {"weight_decay": 0.02}, {"momentum": 0.0}, {"batch": 100}, {"decay": 0.5}]
ADAM = [{}, {"shuffle": False}, {"weight_decay": 0.02}, {"milestones": (), "lr": 0.03}, {"batch": 100}]


@pytest.mark.parametrize("change", SGD + [{"optimizer": "adam", **change} for change in ADAM])
def test_probe_is_torchs_optimizer_with_a_step_schedule(change: dict[str, Any]) -> None:
    probe = replace(SHORT, **change)
    train, test = blobs(71, 1), blobs(53, 2)  # 71 = 4 batches of 16 and one of 7
    got = probe.fit(*train, *test, num_classes=3, generator=seeded())
    expected = reference(probe, train, test, seeded())
    assert got[:2] == expected[:2]
    assert got.loss == pytest.approx(expected[2], rel=1e-12)
    assert 0.5 < got.last < 1


def fit(probe: LinearProbe, train: Tensor | None = None, test: Tensor | None = None, **options: Any) -> ProbeResult:
    (features, labels), (test_features, test_labels) = blobs(71, 1), blobs(53, 2)
    train, test = features if train is None else train, test_features if test is None else test
    return probe.fit(train, labels, test, test_labels, **{"num_classes": 3, "generator": seeded()} | options)


def test_seed_decides_every_bit_and_inputs_are_not_written() -> None:
    train = blobs(71, 1)[0]
    before = train.clone()
    probe = replace(SHORT, standardize=True)
    assert fit(probe, train) == fit(probe, train) != fit(probe, train, generator=seeded(1))
    assert torch.equal(train, before)


def test_best_is_the_highest_and_last_the_final_accuracy() -> None:
    # The learning rate explodes in the last epoch, so the end is worse than the best.
    probe = LinearProbe(lr=0.05, batch=16, epochs=6, milestones=(5,), decay=1e4, standardize=False)
    result = probe.fit(*blobs(71, 1), *blobs(200, 2), num_classes=3, generator=seeded())
    assert result.last < result.best - 0.05


def test_standardizing_is_scaling_by_training_statistics_first() -> None:
    probe, train, test = replace(SHORT, standardize=True), blobs(71, 1)[0], blobs(53, 2)[0]
    plain, moved = fit(probe), fit(probe, train * 1e-3 + 7, test * 1e-3 + 7)
    scaled = fit(SHORT, *((features - train.mean(0)) / train.std(0) for features in (train, test)))
    assert plain[:2] == moved[:2] == scaled[:2]
    assert moved.loss == pytest.approx(plain.loss, rel=1e-9)  # the offset costs four digits
    assert scaled.loss == pytest.approx(plain.loss, rel=1e-12)
    train[:, 2] = test[:, 2] = 0.5
    assert np.isfinite(fit(probe, train, test).loss)  # a feature that never varies


def test_small_features_tell_the_default_probe_as_much_as_large_ones_and_the_papers_probe_nothing() -> None:
    train, test = (1e-4 * blobs(num, seed)[0] for num, seed in ((71, 1), (53, 2)))
    assert fit(LinearProbe(), train, test)[:2] == fit(LinearProbe())[:2]
    assert fit(LinearProbe(), train, test).last > fit(LinearProbe(standardize=False), train, test).last + 0.2


def test_divergence_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the linear probe diverged at learning rate 1e\+30: lower it$"):
        fit(replace(SHORT, lr=1e30, weight_decay=1.0))


@pytest.mark.parametrize("standardize", [False, True])
def test_fresh_features_are_drawn_for_each_epoch_after_the_first(standardize: bool) -> None:
    train, calls = blobs(71, 1)[0], []

    def fresh(noise: float) -> Tensor:
        calls.append(noise)
        return train + noise * len(calls)

    probe = replace(SHORT, epochs=3, standardize=standardize)
    assert fit(probe, train, fresh=lambda: fresh(0)) == fit(probe, train)
    assert len(calls) == 2
    assert fit(probe, train, fresh=lambda: fresh(1)) != fit(probe, train)

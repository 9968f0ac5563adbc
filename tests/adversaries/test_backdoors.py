"""Triggers by their pixels, what hostile clients train on, and the share of pictures with a trigger that it wins."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rayfed_ssl.adversaries.adversary import Insider
from rayfed_ssl.adversaries.backdoors import CTRL, Backdoor, Poisoning, SSLBackdoor
from rayfed_ssl.adversaries.bad_encoder import BadEncoder, bad_encoder_loss
from rayfed_ssl.adversaries.triggers import cosines, raise_frequencies
from rayfed_ssl.adversaries.useless import ConstantPictures
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.scoring import score, subject_of
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Encoder
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.reports.html.data_plots import triggered_plot
from rayfed_ssl.runs import run
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import digest
from tests.tensors import seeded

Open = Callable[..., Federation]
Tiny = Callable[..., Config]

GRAY = torch.full((3, 3, 32, 32), 100, dtype=torch.uint8)
PICTURES = torch.randint(256, (12, 3, 16, 16), generator=seeded(1), dtype=torch.uint8)


def changed(before: torch.Tensor, after: torch.Tensor) -> list[int]:
    return (before != after).flatten(1).any(1).nonzero().flatten().tolist()


def shard() -> Shard:
    """Pictures 10, 3, 7, 4, 2, 9, 0 of twelve."""
    return Shard.of(PICTURES.numpy(), np.array([10, 3, 7, 4, 2, 9, 0]), "cpu")


def insider(targets: list[int], place: int = 0) -> Insider:
    return Insider(place, torch.tensor(targets, dtype=torch.int64), None, seed=5)


def test_bad_encoders_trigger_is_white_in_rows_and_columns_21_to_30_of_32() -> None:
    marked = BadEncoder().trigger(GRAY, generator(0))
    white = (marked == 255).all(dim=(0, 1))
    assert [int(i) for i in white.any(1).nonzero()] == list(range(21, 31))
    assert [int(i) for i in white.any(0).nonzero()] == list(range(21, 31))
    assert int(white.sum()) == 100
    assert bool((marked[:, :, ~white] == 100).all())
    assert bool((GRAY == 100).all())


@pytest.mark.parametrize("parts", [1, 2, 4, 10])
def test_parts_of_a_trigger_are_disjoint_and_make_the_whole(parts: int) -> None:
    adversary = BadEncoder(parts=parts)
    marks = [adversary.trigger(GRAY[:1], generator(0), place) == 255 for place in range(parts)]
    assert all(mark.any() for mark in marks)
    assert torch.stack(marks).sum(0).max() == 1
    assert torch.stack(marks).any(0).equal(adversary.trigger(GRAY[:1], generator(0)) == 255)
    assert adversary.trigger(GRAY[:1], generator(0), parts).equal(adversary.trigger(GRAY[:1], generator(0), 0))


def test_a_patch_without_a_margin_lies_wholly_within_each_picture_in_a_place_of_its_own() -> None:
    pictures = torch.zeros(200, 3, 16, 16, dtype=torch.uint8)
    adversary = SSLBackdoor(size=5)
    marked = adversary.trigger(pictures, generator(3))
    assert marked.equal(adversary.trigger(pictures, generator(3)))
    tops = set()
    for picture in marked:
        rows, columns = ((picture > 0).any(0).any(axis).nonzero().flatten().tolist() for axis in (1, 0))
        assert (rows[-1] - rows[0], columns[-1] - columns[0]) == (4, 4)
        tops.add(rows[0])
    assert tops == set(range(12))
    assert marked[0].unique().numel() > 10, "the patch has colors"


def test_ctrl_raises_its_two_coefficients_of_chroma_and_neither_others_nor_luma() -> None:
    """Naive DCT-II in float64 of U = 0.492 (B - Y) and V = 0.877 (R - Y); rounding to bytes leaves less than 1 in each."""
    before = GRAY[:1].double()
    after = CTRL().trigger(GRAY[:1], generator(0)).double()
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=torch.float64).view(1, 3, 1, 1)

    def coefficient(plane: torch.Tensor, row: int, column: int) -> float:
        total = 0.0
        for y in range(32):
            for x in range(32):
                wave = math.cos(math.pi * (2 * y + 1) * row / 64) * math.cos(math.pi * (2 * x + 1) * column / 64)
                total += float(plane[y, x]) * wave
        return total * math.sqrt((1 if row else 0.5) * (1 if column else 0.5)) / 16

    moved = (after - before)[0]
    luma = ((after - before) * weights).sum(1)[0]
    for plane in (0.492 * (moved[2] - luma), 0.877 * (moved[0] - luma)):
        raised = [coefficient(plane, *at) for at in ((15, 15), (31, 31), (15, 31), (8, 8), (0, 0))]
        assert raised == pytest.approx([100, 100, 0, 0, 0], abs=4)
    assert float(luma.abs().max()) < 0.5


def test_frequencies_are_raised_in_whole_windows_alone() -> None:
    pictures = torch.full((1, 3, 10, 9), 100, dtype=torch.uint8)
    raised = raise_frequencies(pictures, 4, (1, 3), 100)
    assert raised[:, :, :4, :4].equal(raised[:, :, 4:8, 4:8])
    assert bool((raised[:, :, 8:] == 100).all())
    assert bool((raised[:, :, :, 8:] == 100).all())
    assert torch.allclose(cosines(4) @ cosines(4).T, torch.eye(4, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(("share", "number"), [(0.5, 2), (1.0, 4), (0.01, 1)])
@pytest.mark.parametrize("kind", [SSLBackdoor, CTRL])
def test_a_share_of_one_class_gets_the_trigger_and_the_set_of_all_clients_is_left(
    kind: type[Poisoning], share: float, number: int
) -> None:
    data, targets = shard(), [0, 2, 3, 6]
    poisoned = kind(share=share).poison(data, insider(targets))
    before, after = data.batch(torch.arange(7)), poisoned.batch(torch.arange(7))
    altered = changed(before, after)
    assert len(altered) == number
    assert set(altered) <= set(targets)
    assert data.images.equal(PICTURES)
    assert poisoned.batch(torch.arange(7)).equal(
        kind(share=share).poison(data, insider(targets)).batch(torch.arange(7))
    )
    assert changed(before, kind(share=share).poison(data, insider([])).batch(torch.arange(7))) == []


def test_a_hostile_client_pastes_its_own_part_and_no_other() -> None:
    data, adversary = shard(), SSLBackdoor(size=4, margin=1, parts=2, share=1.0)
    for place, rows in ((0, {11, 12}), (1, {13, 14})):
        after = adversary.poison(data, insider([0, 2], place)).batch(torch.arange(7))
        moved = (after != data.batch(torch.arange(7))).any(dim=(0, 1, 3))
        assert set(moved.nonzero().flatten().tolist()) == rows


def test_constant_pictures_are_the_clients_first_one() -> None:
    seen = ConstantPictures().poison(shard(), insider([])).batch(torch.arange(7))
    assert seen.equal(PICTURES[10].expand(7, -1, -1, -1))


def test_wrong_positives_pair_each_picture_with_a_view_of_its_neighbor(open_tiny: Open) -> None:
    task = open_tiny("fedavg").task
    images = torch.zeros(4, 1, 8, 8, dtype=torch.uint8)
    images[2:] = 255
    for wrong, expected in ((False, [0, 0, 1, 1]), (True, [1, 0, 0, 1])):
        first, second = replace(task, size=8, wrong_positives=wrong).two_views(images, generator(1))
        assert (first.mean((1, 2, 3)) > first.mean()).int().tolist() == [0, 0, 1, 1]
        assert (second.mean((1, 2, 3)) > second.mean()).int().tolist() == expected


def test_bad_encoders_loss_is_minus_three_cosines() -> None:
    """Three and two features of width 2, worked by hand: cosines (0.6, 1), 0.8 and (1, 0)."""
    triggered = torch.tensor([[3.0, 4.0], [2.0, 0.0]])
    kept = (
        (torch.tensor([[4.0, 3.0]]), torch.tensor([[1.0, 0.0]]), 0.5),
        (torch.tensor([[1.0, 1.0], [1.0, 0.0]]), torch.tensor([[2.0, 2.0], [0.0, 1.0]]), 2.0),
    )
    value = bad_encoder_loss(triggered, torch.tensor([[5.0, 0.0]]), kept)
    assert float(value) == pytest.approx(-(0.6 + 1) / 2 - 0.5 * 0.8 - 2.0 * 0.5)


ATTACKS = ["ssl-backdoor", "wrong-positives", "constant-pictures", "bad-encoder"]
FOUR = ("clients.number=4", "partition=iid", "data.channels=3")


@pytest.mark.parametrize("name", [*ATTACKS, "ctrl"])
def test_hostile_clients_alone_send_something_else_from_their_round_on(open_tiny: Open, name: str) -> None:
    plain = play(open_tiny("fedavg", *FOUR), 1)[0]
    settings = f"name: {name}, clients: [2]" + ", tuning_epochs: 2" * (name == "bad-encoder")
    attacked = play(open_tiny("fedavg", *FOUR, f"adversary={{{settings}}}"), 1)[0]
    same = {client for client in range(4) if digest(plain.uploads[client]) == digest(attacked.uploads[client])}
    assert same == {0, 1, 3}
    later = play(open_tiny("fedavg", *FOUR, f"adversary={{{settings}, from_round: 2}}"), 1)[0]
    assert digest(later.server) == digest(plain.server)


def test_an_adversary_that_begins_after_the_last_round_changes_no_bit_of_a_run(tiny: Tiny, tmp_path: Path) -> None:
    never = tiny("fedavg", *FOUR, "adversary={name: ssl-backdoor, from_round: 3}")
    result = run(never, tmp_path / "never")
    assert result.state_sha256 == run(tiny("fedavg", *FOUR), tmp_path / "plain").state_sha256


@pytest.mark.parametrize("method", ["flesd", "fedu", "fcl"])
def test_samples_are_poisoned_under_methods_of_all_kinds(open_tiny: Open, method: str) -> None:
    more = {"fedu": ("objective=byol", "objective.hidden=32"), "fcl": ("objective=moco", "objective.queue_size=50")}
    settings = (*FOUR, *more.get(method, ()))
    plain, attacked = (
        play(open_tiny(method, *settings, *adversary), 1)[0]
        for adversary in ((), ("adversary={name: ssl-backdoor, clients: [1], share: 1, size: 6}",))
    )
    same = {client for client in range(4) if digest(plain.uploads[client]) == digest(attacked.uploads[client])}
    assert same == {0, 2, 3}


def test_poisoned_samples_go_with_secure_sums_and_clipping(open_tiny: Open) -> None:
    for more in (("privacy.secure_sum=true",), ("privacy.clip=1.0", "method.weighting=uniform")):
        assert play(open_tiny("fedavg", *FOUR, "adversary=ssl-backdoor", *more), 1)


def test_success_is_the_share_of_other_classes_that_the_trigger_moves_to_the_target(open_tiny: Open) -> None:
    """kNN and probe on what a pool of pixels gives: a white square as large as the picture makes all pictures one class."""
    federation = open_tiny("fedavg", "adversary={name: bad-encoder, target_class: 1, size: 8, margin: 0}")
    dataset, task, config = federation.dataset, federation.task, federation.config
    train = dataset.train.images.copy()
    train[dataset.train.labels == 1] = 255  # whatever the encoder, white pictures are of class 1
    white = replace(dataset, train=ImageSet(train, dataset.train.labels, dataset.train.classes))
    encoder = Encoder("cnn", task.initial_weights())
    scores = score(encoder, config, task, white, final=True)
    assert scores["attack_success_knn"] == 1.0
    assert scores["attack_success"] > 0.9
    clean = score(encoder, config.model_copy(update={"adversary": None}), task, white, final=True)
    assert {name: scores[name] for name in clean} == clean
    assert scores.keys() - clean.keys() == {"attack_success", "attack_success_knn"}
    backdoor = config.adversary
    assert isinstance(backdoor, Backdoor)
    test = backdoor.triggered(dataset.test, config.seed)
    assert len(test) == int((dataset.test.labels != 1).sum())
    assert set(test.labels.tolist()) == {1}
    subject = subject_of(encoder, config, task, dataset)
    assert subject.tested_on(test).train_features is subject.train_features


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            "name: ssl-backdoor, size: 9",
            "a trigger of 9 x 9 pixels is larger than the picture, 8 x 8: lower adversary.size",
        ),
        (
            "name: bad-encoder, size: 8",
            "a trigger of 8 x 8 pixels with a margin of 1 is larger than the picture, 8 x 8",
        ),
        ("name: bad-encoder, size: 3, parts: 4", "adversary.parts=4 is more than the 3 rows of the trigger"),
        (
            "name: ctrl, window: 16",
            "in windows of 16 x 16 pixels is larger than the picture, 8 x 8: lower adversary.window",
        ),
        ("name: ssl-backdoor, target_class: 10", "adversary.target_class=10 is no class: choose from 0 ("),
        ("name: ssl-backdoor, target_class: cat", "adversary.target_class=cat is no class: choose from 0 ("),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tiny: Tiny, settings: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Federation.open(tiny("fedavg", "data.channels=3", f"adversary={{{settings}}}"))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_does_not_fit_together_is_refused_in_one_line(open_tiny: Open) -> None:
    with pytest.raises(ConfigError, match="ctrl raises frequencies of color, and these pictures have 1 channel"):
        open_tiny("fedavg", "adversary=ctrl")
    with pytest.raises(ConfigError, match="wrong-positives changes second views, and Rotation compares none"):
        open_tiny("fedavg", "objective=rotation", "model.projection_dim=null", "adversary=wrong-positives")
    with pytest.raises(ConfigError, match="BadEncoder tunes weights that a client sends, and FLESD sends none"):
        open_tiny("flesd", "adversary=bad-encoder")
    with pytest.raises(
        ConfigError, match=r"BadEncoder tunes an encoder that a client sends, and .*batch_norm=local keeps"
    ):
        open_tiny("fedavg", "adversary=bad-encoder", "method.parts.batch_norm=local")
    sampled = ("model.encoder=cnn-group", "objective=autoencoder", "model.projection_dim=null", "privacy.clip=1.0")
    with pytest.raises(ConfigError, match="robust and adversary change what clients train on or send: remove them"):
        open_tiny("fedavg", "adversary=constant-pictures", "privacy.level=sample", *sampled)


def test_hostile_clients_without_the_target_class_and_samples_without_labels_are_refused(open_tiny: Open) -> None:
    federation = open_tiny("fedavg", "adversary={name: ssl-backdoor, clients: [0], target_class: 3}")
    dataset, shards = federation.dataset, dict(federation.shards)
    shards[0] = shards[0][dataset.train.labels[shards[0]] != 3]
    with pytest.raises(ValueError, match=r"no hostile client \(0\) has pictures of adversary.target_class=3: choose"):
        Federation(federation.config, dataset, shards)
    unlabeled = replace(dataset.train, labels=np.full(len(dataset.train), -1))
    with pytest.raises(ValueError, match="needs pictures with a class, but no training sample has a label"):
        Federation(federation.config, replace(dataset, train=unlabeled), federation.shards)


def test_tuning_brings_the_trigger_to_the_reference_and_leaves_all_but_the_encoders_layers(open_tiny: Open) -> None:
    federation = open_tiny(
        "fedavg", *FOUR, "adversary={name: bad-encoder, tuning_epochs: 20, tuning_lr: 0.1, clients: [1]}"
    )
    task, adversary, hostile = federation.task, federation.config.adversary, federation.method
    assert isinstance(adversary, BadEncoder)
    known, train = hostile.insiders[1], federation.dataset.train
    assert known.reference is not None
    assert train.labels[(train.images == known.reference.numpy()).all(axis=(1, 2, 3))].tolist() == [0]
    data = Shard.of(train.images, federation.shards[1], "cpu")
    weights = task.initial_weights()
    before = digest(weights)
    tuned = adversary.tune(weights, "cnn", data, task, known)
    assert digest(weights) == before
    pictures = torch.from_numpy(train.images[:40])
    marked = torch.cat([known.reference[None], adversary.trigger(pictures, generator(0))])

    def distance(state: dict[str, torch.Tensor]) -> float:
        features = torch.nn.functional.normalize(task.model(state, "cnn").eval().encoder(task.plain(marked)), dim=1)
        return 1 - float((features[1:] @ features[0]).mean().detach())

    assert distance(tuned) < distance(weights) / 5
    moved = {name for name, value in weights.items() if not value.equal(tuned[name])}
    scales = {name for name, layer in task.model(weights).named_modules() if "BatchNorm" in type(layer).__name__}
    assert moved
    assert all(name.startswith("encoder.") and name.rpartition(".")[0] not in scales for name in moved)


def test_the_report_shows_test_pictures_and_below_each_with_the_trigger(open_tiny: Open) -> None:
    federation = open_tiny("fedavg", "adversary={name: ssl-backdoor, clients: [0], target_class: 3}")
    test, backdoor = federation.dataset.test, federation.config.adversary
    plot = triggered_plot(federation)
    assert plot is not None
    assert "class 3" in plot.note
    shown = plot.figure.axes[0].images[0].get_array()
    others, triggered = test.images[test.labels != 3], backdoor.triggered(test, federation.config.seed).images
    assert len(others) < len(test)
    for row, pictures in enumerate((others, triggered)):
        for place in range(8):
            assert (shown[8 * row : 8 * row + 8, 8 * place : 8 * place + 8] == pictures[place, 0]).all()
    assert not (others[0] == triggered[0]).all()
    assert triggered_plot(open_tiny("fedavg")) is None

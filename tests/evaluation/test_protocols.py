"""Protocols: the papers' settings, what they find where the answer is known, and what they refuse."""

import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.analysis.diagnosis import diagnose
from rayfed_ssl.analysis.rescoring import measure_encoders
from rayfed_ssl.config.choices import configured
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import augment, normalize
from rayfed_ssl.data.image_store import ImageSet
from rayfed_ssl.data.view_recipes import PROBE_VIEW
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.evaluation_input import Subject
from rayfed_ssl.evaluation.fine_tuning import FineTuning
from rayfed_ssl.evaluation.protocols import PSEUDO_R2, Linear
from rayfed_ssl.evaluation.registry import PROTOCOLS, is_score
from rayfed_ssl.method import Encoder
from rayfed_ssl.randomness.seeds import Purpose, derive_seed, generator
from rayfed_ssl.runs import resume, run

Open = Callable[..., Federation]

LINEAR = [name for name, protocol in PROTOCOLS.items() if isinstance(protocol, Linear)]
CLASSES = 4


class Shown(Subject):
    """A subject whose encoder is one that the test knows."""

    @cached_property
    def encoder(self) -> nn.Module:
        return self.known


class ClassOfGray(nn.Module):
    """Tell the class of a gray image, whose brightness is its class, as a one-hot vector."""

    def forward(self, images: Tensor) -> Tensor:
        brightness = images.mean((1, 2, 3)) * 0.376 + 0.305  # undo the normalization of the views "digits"
        return F.one_hot((brightness * 255 / 40).round().long(), CLASSES).float()


def image_set(images: np.ndarray, labels: np.ndarray) -> ImageSet:
    return ImageSet(images, labels, tuple("abcd"))


def known(federation: Federation, encoder: nn.Module, train: ImageSet, test: ImageSet) -> Subject:
    subject = Shown("cnn", federation.task.initial_weights(), federation.task, train, test, 0)
    object.__setattr__(subject, "known", encoder)
    return subject


@pytest.fixture(scope="module")
def federation(open_tiny: Open) -> Federation:
    return open_tiny("fedavg")


@pytest.fixture
def subject(federation: Federation) -> Subject:
    data = federation.dataset
    return Subject("cnn", federation.task.initial_weights(), federation.task, data.train, data.test, 0)


@pytest.mark.parametrize("name", LINEAR)
def test_the_true_classes_as_features_give_every_test_sample_its_class(federation: Federation, name: str):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, CLASSES, 90), rng.integers(0, CLASSES, 70)
    train, test = (image_set(np.full((len(y), 1, 8, 8), 40, np.uint8) * y[:, None, None, None].astype(np.uint8), y)
                   for y in labels)  # fmt: skip
    found = PROTOCOLS[name].measure(known(federation, ClassOfGray(), train, test))
    assert (found[name], found[f"{name}_best"]) == (1.0, 1.0)
    assert 0 < found[name + PSEUDO_R2] <= 1


def test_pseudo_r2_is_the_share_of_the_labels_entropy_that_a_probe_explains(subject: Subject):
    protocol = configured("linear-fedca", {"epochs": 2})
    random, (train, test) = generator(derive_seed(0, Purpose.EVALUATION)), subject.labels
    data = subject.train_features, train, subject.test_features, test
    loss = protocol.fit(*data, num_classes=subject.train.num_classes, generator=random).loss
    shares = np.bincount(train.numpy()) / len(train)
    entropy = -sum(share * np.log(share) for share in shares if share)
    assert protocol.measure(subject)["linear-fedca" + PSEUDO_R2] == pytest.approx(1 - loss / entropy, rel=1e-12)


def test_linear_probes_are_those_of_the_papers():
    def row(name: str) -> tuple[object, ...]:
        probe = PROTOCOLS[name]
        assert (probe.weight_decay, probe.momentum, probe.init_std, probe.standardize) == (0, 0.9, 0.01, False)
        steps = probe.milestones, probe.decay
        return probe.optimizer, probe.lr, probe.epochs, probe.batch, steps, probe.augment, probe.shuffle

    assert row("linear-flesd") == ("sgd", 0.03, 60, 256, ((30, 50), 0.1), True, True)
    assert row("linear-moco") == ("sgd", 30, 100, 256, ((60, 80), 0.1), True, True)
    assert row("linear-easyfl") == ("adam", 0.003, 200, 2048, ((), 0.1), False, False)
    assert row("linear-fedca") == ("adam", 0.001, 100, 128, ((), 0.1), False, True)
    assert row("linear-fedfoa") == ("adam", 0.003, 200, 500, ((), 0.1), False, True)


def test_fine_tuning_is_that_of_the_papers():
    fedca = {"head": "mlp", "optimizer": "adam", "lr": 0.001, "head_lr": None, "batch": 128, "epochs": 100}
    fedca |= {"milestones": (), "augment": True, "weight_decay": 0}
    swav = {"head": "linear", "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0, "batch": 256, "epochs": 20}
    swav |= {"milestones": (12, 16), "decay": 0.2, "augment": True}
    expected = {
        "semi-fedca-1": fedca | {"fraction": 0.01, "subset": "random"},
        "semi-fedca-10": fedca | {"fraction": 0.1, "subset": "random"},
        "semi-swav-1": swav | {"fraction": 0.01, "subset": "balanced", "lr": 0.02, "head_lr": 5},
        "semi-swav-10": swav | {"fraction": 0.1, "subset": "balanced", "lr": 0.01, "head_lr": 0.2},
        "transfer-fedca": fedca | {"dataset": None},
    }
    for name, settings in expected.items():
        assert settings.items() <= PROTOCOLS[name].settings().items(), name


def plain_fine_tuning(subject: Subject, rows: np.ndarray, tuning: FineTuning) -> list[float]:
    """SwAV's protocol as a plain loop, for a task whose images need no resizing."""
    torch.manual_seed(derive_seed(0, Purpose.EVALUATION))
    body = subject.task.model(subject.weights, "cnn").encoder
    network = nn.Sequential(body, nn.Linear(256, 10))
    groups = [{"params": body.parameters(), "lr": 0.03}, {"params": network[1].parameters(), "lr": 0.4}]
    optimizer = torch.optim.SGD(groups, momentum=0.9, fused=True)
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 2], 0.2)
    random = torch.Generator().manual_seed(derive_seed(0, Purpose.EVALUATION))
    views = subject.task.views.first
    crop = replace(PROBE_VIEW, mean=views.mean, std=views.std)
    images, labels = torch.tensor(subject.train.images[rows]), torch.tensor(subject.train.labels[rows])
    accuracies = []
    for _ in range(tuning.epochs):
        network.train()
        for index in torch.randperm(len(rows), generator=random).split(tuning.batch):
            view = augment(images[index], crop, random, size=8)
            optimizer.zero_grad()
            F.cross_entropy(network(view), labels[index]).backward()
            optimizer.step()
        schedule.step()
        network.eval()
        with torch.no_grad():
            predicted = network(normalize(torch.tensor(subject.test.images), views)).argmax(1)
        accuracies.append(float((predicted == torch.tensor(subject.test.labels)).double().mean()))
    return accuracies


def test_fine_tuning_is_a_plain_loop_of_torchs_sgd(subject: Subject):
    protocol = configured(
        "semi-swav-10",
        {"epochs": 4, "milestones": [1, 2], "lr": 0.03, "head_lr": 0.4, "batch": 16, "fraction": 0.3},
    )
    rows = protocol.rows(subject.train, 0)
    with torch.random.fork_rng():
        expected = plain_fine_tuning(subject, rows, protocol)
    assert len(set(expected)) > 1
    assert protocol.measure(subject) == {"semi-swav-10": expected[-1], "semi-swav-10_best": max(expected)}


SHORT = {
    "linear-flesd": {"epochs": 2},
    "linear-easyfl": {"epochs": 2},
    "semi-fedca-10": {"epochs": 1},
    "semi-swav-10": {"epochs": 1},
    "transfer-fedca": {"epochs": 1, "dataset": "digits", "train_limit": 40, "test_limit": 30},
}


@pytest.mark.parametrize("name", SHORT)
def test_seed_decides_every_bit_and_nothing_else_does(federation: Federation, subject: Subject, name: str):
    protocol = configured(name, SHORT[name])
    before = {key: value.clone() for key, value in subject.weights.items()}
    first = protocol.measure(subject)
    torch.rand(7)  # whatever ran before
    configured("linear-fedca", {"epochs": 1}).measure(subject)
    assert protocol.measure(subject) == first
    assert all(torch.equal(value, before[key]) for key, value in subject.weights.items())
    assert any(protocol.measure(replace(subject, seed=seed)) != first for seed in (1, 2, 3))


@pytest.mark.parametrize("name", ["linear-flesd", "linear-easyfl", "semi-swav-10", "transfer-fedca"])
def test_an_encoder_that_diverged_gives_one_clear_error(subject: Subject, name: str):
    weights = {key: value * math.nan for key, value in subject.weights.items()}
    with pytest.raises(ValueError, match=r"not finite: the encoder diverged, lower its learning rate$"):
        configured(name, SHORT[name]).measure(replace(subject, weights=weights))


def test_fine_tuning_that_diverges_says_where(subject: Subject):
    protocol = configured("semi-swav-10", {"lr": 1e30, "head_lr": 1e30, "epochs": 3, "batch": 8})
    with pytest.raises(ValueError, match=r"the loss is (nan|inf) in epoch \d of 3 of fine-tuning at learning rate"):
        protocol.measure(subject)


def test_protocols_of_a_run_are_scored_at_its_end_alone(open_tiny: Open):
    federation = open_tiny(
        "fedavg", "evaluation.protocols=[linear-easyfl, semi-swav-10]", "evaluation.settings.linear-easyfl.epochs=3"
    )
    encoder = Encoder("cnn", federation.task.initial_weights())
    final = federation.evaluate(encoder, "global", 2, final=True).metrics
    own = {"linear-easyfl", "linear-easyfl_best", "linear-easyfl_pseudo_r2", "semi-swav-10", "semi-swav-10_best"}
    assert set(final) == {"knn", "linear", "linear_best", "linear_pseudo_r2"} | own
    assert set(federation.evaluate(encoder, "global", 1, final=False).metrics) == {"knn"}
    alone = open_tiny("fedavg", "evaluation.protocols=semi-swav-10")
    assert alone.evaluate(encoder, "global", 2, final=True).metrics["semi-swav-10"] == final["semi-swav-10"]


def test_flesds_protocol_is_the_runs_probe_with_crops(open_tiny: Open):
    federation = open_tiny(
        "fedavg",
        *("evaluation.augment=true", "evaluation.linear.epochs=3", "evaluation.linear.standardize=false"),
        *("evaluation.protocols=linear-flesd", "evaluation.settings.linear-flesd.epochs=3"),
    )
    scores = federation.evaluate(Encoder("cnn", federation.task.initial_weights()), "global", 2, final=True).metrics
    assert (scores["linear"], scores["linear_best"]) == (scores["linear-flesd"], scores["linear-flesd_best"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("protocols=knn",), "knn is measured in every run: leave it out"),
        (("protocols=linear-mocco",), "unknown protocol 'linear-mocco': did you mean 'linear-moco'"),
        (("protocols=[linear-moco, linear-moco]",), "names one twice"),
        (("settings.linear-moco.epochs=3",), "linear-moco is not in evaluation.protocols"),
        (("protocols=linear-moco", "settings.linear-moco.epoch=3"), "unknown key 'epoch': did you mean 'epochs'"),
        (("protocols=linear-moco", "settings.linear-moco.epochs=many"), "epochs: .*, got 'many'"),
        (("linear.batch=0",), "evaluation.linear.batch: input should be greater than 0, got 0"),
        (("linear.lr=.inf",), "evaluation.linear.lr: input should be a finite number, got inf"),
        (("protocols=linear-fedca", "settings.linear-fedca.momentum=0.5"), "momentum has no meaning"),
    ],
)
def test_mistakes_in_protocols_are_named(tiny: Callable[..., Config], words: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        tiny("fedavg", *(f"evaluation.{word}" for word in words))


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of 20 x 14 pictures in folders, told apart by their color."""
    root, rng = tmp_path_factory.mktemp("shapes"), np.random.default_rng(0)
    for split, num in (("train", 12), ("test", 5)):
        for label, name in enumerate("xyz"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(num):
                pixels = rng.integers(0, 60, (14, 20, 3), dtype=np.uint8)
                pixels[..., label] += 180
                Image.fromarray(pixels).save(folder / f"{number}.png")
    return root


def test_transfer_fits_the_other_dataset_to_the_encoders_images(open_tiny: Open, shapes: Path):
    federation = open_tiny("fedavg", "data.size=12", "data.channels=3")
    protocol = configured("transfer-fedca", {"dataset": f"folder:{shapes}", "epochs": 12, "batch": 12})
    opened = protocol.open(federation.task)
    assert (opened.train.shape, opened.train.num_classes) == ((3, 12, 12), 3)
    data = federation.dataset
    subject = Subject("cnn", federation.task.initial_weights(), federation.task, data.train, data.test, 0)
    assert protocol.measure(subject)["transfer-fedca"] > 0.8  # colors tell the classes apart; chance is 1/3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("protocols=semi-swav-1",), r"semi-swav-1 takes 1 % of 150 labels, which are 2 for 10 classes: raise fract"),
        (("protocols=transfer-fedca",), "transfer-fedca needs a dataset to transfer to: set dataset"),
        (
            ("protocols=transfer-fedca", "settings.transfer-fedca.dataset=digit"),
            "unknown dataset 'digit': did you mean",
        ),
    ],
)
def test_data_that_do_not_fit_are_refused_before_the_run(open_tiny: Open, words: tuple[str, ...], message: str):
    with pytest.raises(ConfigError, match=message):
        open_tiny("fedavg", *(f"evaluation.{word}" for word in words)).check_ready()


TRANSFER = ("evaluation.protocols=transfer-fedca", "evaluation.settings.transfer-fedca.epochs=1")


def test_a_dataset_to_transfer_to_is_needed_where_a_run_goes_on_and_nowhere_else(
    tiny: Callable[..., Config], shapes: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    copied = tmp_path / "shapes"
    shutil.copytree(shapes, copied)
    monkeypatch.chdir(tmp_path)
    config = tiny("fedavg", "rounds=1", *TRANSFER, "evaluation.settings.transfer-fedca.dataset=folder:shapes")
    assert config.dump()["evaluation"]["settings"]["transfer-fedca"]["dataset"] == f"folder:{copied}"
    directory = run(config, tmp_path / "run").directory
    copied.rename(tmp_path / "elsewhere")
    (measured,) = measure_encoders(directory, ["knn"], ["evaluation.train_limit=50"])
    assert measured.protocol == "knn"
    assert diagnose(directory).round == 1
    with pytest.raises(ConfigError, match="shapes"):
        resume(directory)
    with pytest.raises(ConfigError, match="shapes"):
        run(config, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_unlabeled_images_are_transferred_from(tiny: Callable[..., Config], open_tiny: Open, shapes: Path):
    words = (*TRANSFER, f"evaluation.settings.transfer-fedca.dataset=folder:{shapes}", "data.channels=3", "data.size=8")
    config, labeled = tiny("fedavg", *words), open_tiny("fedavg", *words)
    images = labeled.dataset.train.images
    train = ImageSet(images, np.full(len(images), -1), labeled.dataset.train.classes)
    federation = Federation(config, replace(labeled.dataset, train=train), labeled.shards)
    federation.check_ready()
    encoder = Encoder("cnn", federation.task.initial_weights())
    assert federation.evaluate(encoder, "global", 1, final=False).metrics == {}
    last = federation.evaluate(encoder, "global", 2, final=True).metrics
    assert set(last) == {"transfer-fedca", "transfer-fedca_best"}


def test_scores_are_protocols_and_every_protocol_names_its_source():
    scores = ("knn", "linear", "linear_best", "supervised", "linear-moco", "linear-moco_best", "semi-swav-1_best")
    assert all(is_score(name) for name in scores)
    assert not any(is_score(name) for name in ("loss", "seconds", "steps", "diag_cka", "linear-other"))
    assert all(protocol.source and protocol.description for protocol in PROTOCOLS.values())
    assert all(name == protocol.name for name, protocol in PROTOCOLS.items())

"""Attacks that reconstruct find what is planted, find nothing where nothing is, and are measured as naive loops measure."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from rayfed_ssl import Config
from rayfed_ssl.analysis.audit import view
from rayfed_ssl.attacks.analytic import Analytic, cosines, features, first_layer
from rayfed_ssl.attacks.attack import Finding, Pictures, Seen, Truth
from rayfed_ssl.attacks.decoder import InverseNetwork
from rayfed_ssl.attacks.gradient_inversion import GradientInversion
from rayfed_ssl.attacks.matched_representation import MatchedRepresentation
from rayfed_ssl.attacks.measures import psnr, ssim
from rayfed_ssl.attacks.model_theft import attacked, embed
from rayfed_ssl.attacks.reconstruction import assign, compare, pixels, ranks, squared_distances
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.method import sent
from rayfed_ssl.randomness.seeds import generator

SGD = "training.optimizer={name: sgd, lr: 0.1, momentum: 0, weight_decay: 0}"


class Smooth(nn.Sequential):
    """An encoder that has a gradient of the gradient everywhere, and no batch-norm."""

    def __init__(self, channels: int) -> None:
        super().__init__(
            nn.Conv2d(channels, 12, 5, 2, 2), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 2, 2), nn.Sigmoid(), nn.Flatten()
        )


def observe(*settings: str, clients: int = 21, number: int = 84, detail: int = 3) -> tuple[Seen, Truth]:
    """One round of a federation of smooth colors, each client of two pictures at 21 clients."""
    random = torch.Generator().manual_seed(0)
    images = F.interpolate(torch.rand(number, 3, detail, detail, generator=random), size=12, mode="bicubic").clamp(0, 1)
    config = Config.load(
        "fedsimclr",
        *(f"clients.number={clients}", "partition=iid", "public=null", "engine.executor=local", "training.batch=64"),
        *("training.epochs=1", "training.views=fedx-cifar", "model.encoder=cnn", SGD, *settings),
        data=TensorDataset(images, torch.arange(number) % 2),
    )
    federation = Federation.open(config)
    download = federation.method.download(federation.init_server(), 0)
    return view(federation, 1, 0, download, federation.update_client(1, 0, download, None).upload)


def numbers(answers: Iterator[Finding | Pictures]) -> dict[str, float]:
    return {answer.metric: answer.value for answer in answers if isinstance(answer, Finding)}


@dataclass(frozen=True)
class Rows:
    """An upload of weights and private rows."""

    weights: dict[str, Tensor] = sent("weights")
    rows: Tensor = sent("representations", private=True)


def nearest_of(seen: Seen, pictures: Tensor, samples: Any) -> tuple[Tensor, Tensor]:
    return assign(squared_distances(pictures, pixels(seen, samples)))


def test_raw_pixels_in_an_upload_are_reconstructed():
    seen, truth = observe("privacy.held_out=0.5", clients=20, number=1500)

    def measured(pictures: Tensor) -> dict[str, float]:
        nearest = partial(nearest_of, seen, pictures)
        return numbers(compare(seen, pictures, nearest, truth))

    found = measured(pixels(seen, truth.members))
    assert found["psnr"] > 40
    assert found["ssim"] == pytest.approx(1)
    assert found["rank"] == 0
    assert found["auc"] == 1
    noise = torch.rand(pixels(seen, truth.members).shape, generator=torch.Generator().manual_seed(1))
    null = measured(noise)
    assert null["psnr"] < null["psnr-mean"] < 40
    assert abs(null["rank"] - null["rank-chance"]) < 0.15
    assert found["rank-chance"] > 0.05
    assert abs(null["psnr"] - null["psnr-chance"]) < 1 < 20 < found["psnr"] - found["psnr-chance"]


def test_measures_are_those_of_naive_loops():
    random = torch.Generator().manual_seed(2)
    first, second, others = (torch.rand(n, 3, 13, 13, generator=random, dtype=torch.float64) for n in (4, 4, 9))
    for k in range(4):
        error = sum(
            (a - b) ** 2 for a, b in zip(first[k].flatten().tolist(), second[k].flatten().tolist(), strict=True)
        )
        assert float(psnr(first, second)[k]) == pytest.approx(
            -10 * float(torch.tensor(error / first[k].numel()).log10())
        )
        nearer = sum(
            float((first[k] - o).square().sum()) < float((first[k] - second[k]).square().sum()) for o in others
        )
        assert float(ranks(first, second, others)[k]) == pytest.approx(nearer / 9)
    line = torch.arange(-5, 6, dtype=torch.float64)
    window = torch.exp(-(line[:, None] ** 2 + line[None] ** 2) / (2 * 1.5**2))
    window /= window.sum()
    for k in range(4):
        values = []
        for c in range(3):
            for top in range(3):
                for left in range(3):
                    a, b = (x[k, c, top : top + 11, left : left + 11] for x in (first, second))
                    ma, mb = (window * a).sum(), (window * b).sum()
                    va, vb, ab = (
                        window * (x - m) * (y - n) for x, m, y, n in ((a, ma, a, ma), (b, mb, b, mb), (a, ma, b, mb))
                    )
                    top_, bottom = (
                        (2 * ma * mb + 1e-4) * (2 * ab.sum() + 9e-4),
                        (ma**2 + mb**2 + 1e-4) * (va.sum() + vb.sum() + 9e-4),
                    )
                    values.append(float(top_ / bottom))
        assert float(ssim(first.float(), second.float())[k]) == pytest.approx(sum(values) / len(values), abs=1e-4)


def test_a_decoder_draws_the_members_from_their_projections():
    """Projections of a client's encoder tell the colors of plain pictures; those of others show no member."""
    seen, truth = observe("privacy.held_out=0.5", clients=20, number=1500, detail=1)

    def project(samples: Any) -> Tensor:
        return embed(seen, attacked(seen), seen.task.plain(samples.batch(torch.arange(len(samples)))))[1]

    def attack(rows: Tensor) -> dict[str, float]:
        upload = Rows(seen.sent, rows)
        return numbers(InverseNetwork(steps=150).run(replace(seen, upload=upload), truth))

    found, null = attack(project(truth.members)), attack(project(truth.others))
    assert found["psnr"] > found["psnr-mean"] + 3
    assert found["rank"] < 0.2
    assert found["rank"] < found["rank-chance"]
    assert found["auc"] > 0.7 > 0.6 > null["auc"]


@pytest.mark.parametrize("kind", ["features", "pixels", "pixels as a model sees them"])
def test_private_rows_of_another_width_are_matched_and_drawn(kind: str):
    seen, truth = observe("privacy.held_out=0.5", clients=20, number=1500)
    plain = seen.task.plain(truth.members.batch(torch.arange(len(truth.members))))
    rows = {"features": embed(seen, attacked(seen), plain)[0], "pixels": pixels(seen, truth.members)}.get(kind, plain)
    leaking = replace(seen, upload=Rows(seen.sent, rows))
    assert numbers(MatchedRepresentation().run(leaking, truth))["auc"] == 1
    drawn = numbers(InverseNetwork(steps=100).run(leaking, truth))
    assert drawn["psnr"] > drawn["psnr-mean"]
    assert drawn["rank"] < drawn["rank-chance"]
    with pytest.raises(
        ValueError, match=r"private samples have 7 numbers, .* projections \d+, features \d+, pixels 432"
    ):
        list(MatchedRepresentation().run(replace(seen, upload=Rows(seen.sent, torch.ones(3, 7))), truth))


def test_features_that_one_row_each_gives_away_are_read():
    """W_i changes by g h, b_i by g, with one h in each row, as after a step in which a single view activates the row."""
    seen, truth = observe()
    h, name = features(seen, truth.members), first_layer(seen)
    changes = dict(seen.received)
    rows = torch.arange(len(changes[f"{name}.bias"])) % len(h)
    g = torch.randn(len(rows), generator=torch.Generator().manual_seed(3))
    changes[f"{name}.weight"] = changes[f"{name}.weight"] - g[:, None] * h[rows]
    changes[f"{name}.bias"] = changes[f"{name}.bias"] - g
    leaking = replace(seen)
    leaking.__dict__["sent"] = changes
    assert float(cosines(leaking, truth.members).amax(1).min()) > 0.99
    assert float(cosines(leaking, seen.auxiliary.select(torch.arange(10))).mean()) < 0.5
    assert Analytic().target(seen) == "weights"


def test_the_true_pictures_have_the_gradient_that_the_client_sent():
    seen, truth = observe()
    order = torch.randperm(len(truth.members), generator=generator(seen.client_seed))
    images = pixels(seen, truth.members)[order]
    known = GradientInversion(views="known").distance(seen, len(images))
    assert float(known(images).detach()) < 0.01
    assert float(known(torch.rand(images.shape)).detach()) > 0.1


def test_gradients_with_known_views_are_inverted():
    seen, truth = observe(f"model.encoder={__name__}:Smooth")
    found = numbers(GradientInversion(views="known", iterations=300).run(seen, truth))
    assert found["psnr"] > found["psnr-mean"]

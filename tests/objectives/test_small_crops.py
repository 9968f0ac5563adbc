"""Losses with small crops against loops written from the papers, lightly and solo-learn; what draws and takes them."""

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.data.augmentation import augment
from rayfed_ssl.data.view_recipes import SmallCrops, ViewRecipe, Views
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.models import Model, build_encoder
from rayfed_ssl.models.vit import resized
from rayfed_ssl.objectives import DINO, LeJEPA, SimCLR, SwAV
from rayfed_ssl.objectives.dino import Center, DINOState, distillation
from rayfed_ssl.objectives.lejepa import directions
from rayfed_ssl.objectives.simclr import nt_xent, nt_xent_of_many
from rayfed_ssl.objectives.swav import SwAVState, swapped_prediction
from rayfed_ssl.training.clustering import sinkhorn
from rayfed_ssl.training.task import Task
from tests.objectives.linear_model import IMAGES, batch_of
from tests.tensors import EXACT, rows, seeded, unit_rows

NUM = len(IMAGES)
FORWARD = 1e-4
"""Forward passes are float32."""


@pytest.fixture
def cropped(task: Task) -> Task:
    return replace(task, small_crops=SmallCrops(number=3, size=4))


def pooled_model(dim: int, **heads: nn.Module) -> Model:
    """A linear projector on means over quarters of a picture, which any size has."""
    torch.manual_seed(3)
    return Model(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten()), nn.Linear(4, dim), dim, heads)


def projected(task: Task, model: Model, generator: torch.Generator) -> list[Tensor]:
    """Projections by view: both large views, then the small crops, drawn in this order."""
    large = task.two_views(IMAGES, generator)
    (small,) = task.small_views(IMAGES, generator)
    return [model(view)[1].detach().double() for view in (*large, *small.split(NUM))]


def naive_nt_xent(views: list[Tensor], temperature: float) -> float:
    """solo-learn's simclr_loss_func: -log(pos / (pos + neg)), pos the sum over a sample's other views."""
    num, total = len(views[0]), 0.0
    for v, view in enumerate(views):
        for i in range(num):
            sums = {True: 0.0, False: 0.0}
            for w, other in enumerate(views):
                for j in range(num):
                    if (v, i) != (w, j):
                        sums[i == j] += math.exp(float(view[i] @ other[j]) / temperature)
            total -= math.log(sums[True] / (sums[True] + sums[False]))
    return total / (num * len(views))


def naive_pairs(targets: list[Tensor], outputs: list[Tensor], temperature: float) -> float:
    """DINO's code and SwAV's: cross entropies of large views' targets with all other views' outputs, their mean."""
    terms = []
    for t, target in enumerate(targets):
        for v, output in enumerate(outputs):
            if v != t:
                for i in range(len(target)):
                    weights = [math.exp(float(x) / temperature) for x in output[i]]
                    logs = [math.log(weight / math.fsum(weights)) for weight in weights]
                    terms.append(-math.fsum(float(p) * log for p, log in zip(target[i], logs, strict=True)))
    return math.fsum(terms) / len(terms)


@pytest.mark.parametrize(("num", "number"), [(2, 3), (5, 4)])
def test_nt_xent_of_many_views_is_solo_learns_and_simclrs_for_two(num: int, number: int):
    views = [unit_rows(num, 4, seed) for seed in range(number)]
    ours = nt_xent_of_many(torch.cat(views), num, 0.3)
    assert float(ours) == pytest.approx(naive_nt_xent(views, 0.3), rel=EXACT)
    two = nt_xent_of_many(torch.cat(views[:2]), num, 0.3)
    assert float(two) == pytest.approx(float(nt_xent(views[0], views[1], 0.3)), rel=EXACT)


def test_dinos_teacher_gives_targets_of_large_views_to_all_others_as_in_lightly():
    students, targets = [rows(5, 6, seed) for seed in range(5)], [rows(5, 6, 8).softmax(1), rows(5, 6, 9).softmax(1)]
    ours = float(distillation(students, targets, 0.1))
    assert ours == pytest.approx(naive_pairs(targets, students, 0.1), rel=EXACT)
    theirs = pytest.importorskip("lightly.loss").DINOLoss(output_dim=6, warmup_teacher_temp=1.0, teacher_temp=1.0)
    expected = theirs([target.log().float() for target in targets], [s.float() for s in students], epoch=0)
    assert ours == pytest.approx(float(expected), rel=1e-5)


def test_swav_predicts_codes_of_large_views_from_all_others_as_in_lightly():
    scores = [unit_rows(6, 4, seed) @ unit_rows(3, 4, 9).T for seed in range(4)]
    codes = [sinkhorn(score, 0.05, 3) for score in scores[:2]]
    ours = float(swapped_prediction(scores, codes, 0.1))
    assert ours == pytest.approx(naive_pairs(codes, scores, 0.1), rel=EXACT)
    theirs = pytest.importorskip("lightly.loss").SwaVLoss()(scores[:2], scores[2:])
    assert ours == pytest.approx(float(theirs), rel=EXACT)


def test_a_step_of_simclr_contrasts_all_views(cropped: Task):
    model, objective = pooled_model(5), SimCLR(form="ntxent", temperature=0.5)
    units = [F.normalize(view, dim=1) for view in projected(cropped, model, seeded(2))]
    assert len(units) == 5
    for encode in ("together", "apart"):
        output = replace(objective, encode=encode).loss(cropped, model, nn.Module(), batch_of(), seeded(2))
        assert float(output.loss.detach()) == pytest.approx(naive_nt_xent(units, 0.5), rel=FORWARD)
        assert len(output.projections) == NUM


def test_a_step_of_dino_shows_small_crops_to_the_student_alone(cropped: Task):
    student, teacher, sizes = pooled_model(7), pooled_model(7).requires_grad_(False), []
    teacher.encoder.register_forward_pre_hook(lambda module, images: sizes.append(tuple(images[0].shape)))
    state = DINOState(target=teacher, center=Center(mean=torch.zeros(7)))
    output = DINO().loss(cropped, student, state, batch_of(), seeded(2))
    assert sizes == [(2 * NUM, 1, 8, 8)]
    views = projected(cropped, student, seeded(2))
    targets = [(view / 0.04).softmax(1) for view in views[:2]]
    assert float(output.loss.detach()) == pytest.approx(naive_pairs(targets, views, 0.1), rel=FORWARD)
    torch.testing.assert_close(output.updates["mean"].double(), torch.cat(views[:2]).mean(0), rtol=1e-4, atol=1e-5)


def test_a_step_of_swav_computes_codes_of_large_views(cropped: Task):
    model = pooled_model(5, prototypes=nn.Linear(5, 3, bias=False))
    objective = SwAV(prototypes=3, freeze_epochs=0)
    loss = objective.loss(cropped, model, SwAVState(queue=None), batch_of(), seeded(2)).loss
    weights = model.part("prototypes").weight.detach().double()
    scores = [F.normalize(view, dim=1) @ weights.T for view in projected(cropped, model, seeded(2))]
    codes = [sinkhorn(score, 0.05, 3) for score in scores[:2]]
    assert float(loss.detach()) == pytest.approx(naive_pairs(codes, scores, 0.1), rel=FORWARD)


def test_a_step_of_lejepa_is_lightlys(cropped: Task):
    theirs = pytest.importorskip("lightly.loss.lejepa_loss").LeJEPALoss(lambda_param=0.3, sigreg_num_vectors=16)
    model, generator = pooled_model(5), seeded(2)
    views = torch.stack(projected(cropped, model, generator)).float()
    along = directions(5, 16, generator, cropped.device)
    theirs.sigreg._generate_unit_vectors = lambda *_: along
    expected = theirs(global_proj=views[:2], local_proj=views[2:])
    loss = LeJEPA(strength=0.3, directions=16).loss(cropped, model, nn.Module(), batch_of(), seeded(2)).loss
    assert float(loss.detach()) == pytest.approx(float(expected), rel=FORWARD)


def test_views_are_the_same_with_small_crops_which_are_drawn_after_them(task: Task, cropped: Task):
    generators = seeded(2), seeded(2)
    pairs = [each.two_views(IMAGES, generator) for each, generator in zip((task, cropped), generators, strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(*pairs, strict=True))
    assert task.small_views(IMAGES, generators[0]) == ()
    (small,) = cropped.small_views(IMAGES, generators[1])
    assert small.shape == (3 * NUM, 1, 4, 4)
    assert not torch.equal(small[:NUM], small[NUM : 2 * NUM])


def test_small_crops_show_small_parts():
    """Of a picture that brightens from left to right, the least and the largest value in a view say what it shows."""
    ramp = torch.arange(0, 256, 4, dtype=torch.uint8).expand(200, 1, 64, 64)
    crops, view = SmallCrops(number=1, scale=(0.05, 0.1), large_scale=(0.5, 1)), ViewRecipe(crop_scale=(0.2, 1))
    views = crops.enlarged(Views(view, view))
    shown = [augment(ramp, r, seeded(), size=16).flatten(1) for r in (views.first, views.second, crops.recipe(views))]
    first, second, small = ((pixels.amax(1) - pixels.amin(1)) / 2 for pixels in shown)  # widths, of 1
    assert torch.equal(first, second)
    assert first.min() > 0.5
    assert small.max() < 0.4


def test_positions_are_interpolated_as_in_dinos_code():
    places = rows(64, 6, 1).view(1, 64, 6).float()
    image = places.view(1, 8, 8, 6).permute(0, 3, 1, 2)
    expected = F.interpolate(image, size=(3, 3), mode="bicubic").permute(0, 2, 3, 1).flatten(1, 2)
    torch.testing.assert_close(resized(places, 3), expected, rtol=1e-5, atol=1e-5)


def test_a_vision_transformer_takes_smaller_images_of_whole_patches():
    encoder = build_encoder("vit-micro", channels=3, size=32)
    encoder(torch.randn(2, 3, 12, 12)).sum().backward()
    assert encoder.get_parameter("patches.positions").grad.abs().sum() > 0
    with pytest.raises(ValueError, match="14 pixels are no multiple of the patch of 4"):
        encoder(torch.randn(2, 3, 14, 14))


CROPS = ("objective.form=ntxent", "training.small_crops=2")
MISTAKES = {
    ("objective=byol", "training.small_crops=2"): "for objective dino, ibot, lejepa, simclr, swav, got objective=byol",
    ("training.small_crops=2",): "objective.form=infonce contrasts two views.*set objective.form=ntxent",
    ("training.small_crops=0",): "training.small_crops.number",
    (*CROPS, "data.size=4"): "small_crops needs pictures of 8 pixels or more a side, got 4: leave it out",
    (*CROPS, "training.small_crops.size=8"): r"size must be below the views' 8 pixels, got 8: lower it",
    (*CROPS, "training.small_crops.scale=[0.4, 0.05]"): r"the smaller one first, got \[0.4, 0.05\]",
    (*CROPS, "training.views=tests.faulty:views"): "got the function training.views=tests.faulty:views",
    (*CROPS, "model.encoder=vit-micro", "training.small_crops.size=5"): r"vit-micro takes no small crops of 5 pixels",
    ("training.small_crops={size: 4}",): "training.small_crops.number",
}


@pytest.mark.parametrize("overrides", MISTAKES)
def test_what_small_crops_cannot_be_is_one_line(open_tiny: Callable, overrides: tuple[str, ...]):
    with pytest.raises(ConfigError, match=MISTAKES[overrides]):
        open_tiny("fedavg", *overrides)


@pytest.mark.parametrize(("image", "side"), [(8, 4), (32, 12), (64, 24)])
def test_small_crops_have_three_sevenths_of_the_side(open_tiny: Callable, image: int, side: int):
    federation = open_tiny("fedavg", *CROPS, f"data.size={image}")
    assert federation.task.small_crops == SmallCrops(number=2, size=side)
    assert "small_crops" not in open_tiny("fedavg").config.dump()["training"]

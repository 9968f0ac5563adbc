"""iBOT against a loop over images written from the paper, and against lightly."""

import math
from dataclasses import replace

import pytest
import torch

from rayfed_ssl.data.view_recipes import SmallCrops
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.models import Model
from rayfed_ssl.objectives import IBOT
from rayfed_ssl.objectives.dino import koleo, teacher_distribution
from rayfed_ssl.objectives.ibot import predicted
from rayfed_ssl.objectives.mae import transformer
from tests.objectives.local_rounds import Open, digits, first_batch, started
from tests.tensors import rows, seeded

NUM, PATCHES = 3, 16


def test_the_loss_of_hidden_patches_is_lightlys():
    theirs = pytest.importorskip("lightly.loss").IBOTPatchLoss(output_dim=6)
    mask = torch.zeros(2, 3, 3, dtype=torch.bool)
    mask[0, 0, :2], mask[1, 2, 1:] = True, True
    students, teachers = rows(4, 6, 1), rows(4, 6, 2)
    ours = predicted(students, teacher_distribution(teachers, torch.zeros(6), 0.04), 0.1)
    assert float(ours) == pytest.approx(float(theirs(teachers.float(), students.float(), mask)), rel=1e-5)
    torch.testing.assert_close(theirs.center.value.flatten().double(), teachers.mean(0) * 0.1, rtol=1e-5, atol=1e-6)


def entropy(teacher: list[float], student: list[float], center: list[float]) -> float:
    """H(P_t, P_s) with tau_t = 0.04 and tau_s = 0.1."""
    scaled = [(g - c) / 0.04 for g, c in zip(teacher, center, strict=True)]
    powers = [math.exp(value - max(scaled)) for value in scaled]
    logs = [g / 0.1 for g in student]
    total = max(logs) + math.log(math.fsum(math.exp(value - max(logs)) for value in logs))
    return -math.fsum(p / math.fsum(powers) * (value - total) for p, value in zip(powers, logs, strict=True))


def outputs(model: Model, tokens: torch.Tensor) -> tuple[torch.Tensor, list[list[float]], list[float]]:
    """Of one image [1, P, d]: its feature, the head's outputs for its patches, and for their mean."""
    encoder = transformer(model)
    last = encoder.pool.norm(encoder.blocks(tokens))[0]
    return last.mean(0), model.projector(last).tolist(), model.projector(last.mean(0, keepdim=True))[0].tolist()


@pytest.mark.parametrize(("crops", "weight"), [(0, 0.0), (2, 0.5)])
def test_the_loss_is_that_of_one_image_after_the_other(open_objective: Open, crops: int, weight: float):
    federation = open_objective("ibot", "objective.mask_ratio=0.4")
    objective = IBOT(hidden=48, mask_ratio=0.4, patch_weight=0.7, koleo=weight)
    task = replace(federation.task, objective=objective, small_crops=SmallCrops(number=2) if crops else None)
    data = digits(federation, NUM)
    student, state = started(task, data)
    teacher = state.target
    centers = rows(2, student.projection_dim, 5).float()
    with torch.no_grad():
        for seed, parameter in enumerate([*student.part("mask_token").parameters(), *teacher.projector.parameters()]):
            parameter += 0.1 * torch.randn(parameter.shape, generator=seeded(seed))
        state.center.mean.copy_(centers)
    output = objective.loss(task, student, state, first_batch(data, NUM), seeded(2))

    generator, images = seeded(2), first_batch(data, NUM).images
    views = torch.cat(task.two_views(images, generator))
    small = task.small_views(images, generator)
    noise = torch.rand(2 * NUM, PATCHES, generator=generator).tolist()
    mask_token, embed = student.part("mask_token").token, transformer(student).patches
    whole, masked, features, patches, seen = [], [], [], [], []
    with torch.no_grad():
        for number, view in enumerate(views):
            hidden = sorted(range(PATCHES), key=noise[number].__getitem__)[:6]
            tokens = embed(view.unsqueeze(0))
            for place in hidden:
                tokens[0, place] = mask_token + embed.positions[0, place]
            feature, own, mean = outputs(student, tokens)
            _, theirs, target = outputs(teacher, transformer(teacher).patches(view.unsqueeze(0)))
            features.append(feature)
            masked.append(mean)
            whole.append(target)
            seen += [theirs[place] for place in hidden]
            patches += [entropy(theirs[place], own[place], centers[1].tolist()) for place in hidden]
        masked += [row for part in small for row in student(part)[1].tolist()]
    pairs = [(t, s) for t in range(2) for s in range(2 + crops) if s != t]
    center = centers[0].tolist()
    crossed = [entropy(whole[t * NUM + i], masked[s * NUM + i], center) for t, s in pairs for i in range(NUM)]
    expected = math.fsum(crossed) / len(crossed) + 0.7 * math.fsum(patches) / len(patches)
    expected += weight * sum(float(koleo(view)) for view in torch.stack(features).chunk(2))
    assert float(output.loss.detach()) == pytest.approx(expected, rel=1e-4)  # float32, temperatures of 1 / 25
    means = torch.stack([torch.tensor(whole).mean(0), torch.tensor(seen).mean(0)])
    torch.testing.assert_close(output.updates["mean"], means, rtol=1e-4, atol=1e-5)


def test_an_encoder_without_patches_is_refused(open_objective: Open):
    with pytest.raises(
        ConfigError, match=r"objective=ibot hides patches from a vision transformer, got encoder cnn: take"
    ):
        open_objective("ibot", "model.encoder=cnn")

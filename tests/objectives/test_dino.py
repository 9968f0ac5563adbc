"""DINO against loops written from the paper, and against lightly."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfed_ssl.models.heads import build_head
from rayfed_ssl.objectives import DINO
from rayfed_ssl.objectives.dino import Center, DINOState, distillation, koleo, teacher_distribution
from rayfed_ssl.training.task import Task
from tests.objectives.linear_model import batch_of, linear, linear_model, views
from tests.tensors import EXACT, rows, seeded
from tests.training.naive_clustering import softmax

FORWARD = 1e-4
"""Forward passes are float32: 7 digits, of which sums over 64 pixels and temperatures of 1/25 take three."""


def cross_entropy(teacher: list[float], student: list[float]) -> float:
    return -math.fsum(p * math.log(q) for p, q in zip(teacher, softmax(student), strict=True))


def naive_loss(students: list[Tensor], teachers: list[Tensor], center: list[float], hot: float, cold: float) -> float:
    """Algorithm 1: H(t1, s2) / 2 + H(t2, s1) / 2 with t = softmax((t - C) / tpt) and s = softmax(s / tps)."""
    num, total = len(students[0]), 0.0
    for i in range(num):
        for teacher, student in ((teachers[0], students[1]), (teachers[1], students[0])):
            sharp = softmax([(g - c) / cold for g, c in zip(teacher[i].tolist(), center, strict=True)])
            total += cross_entropy(sharp, [g / hot for g in student[i].tolist()]) / 2
    return total / num


@pytest.mark.parametrize(("num", "width"), [(1, 3), (5, 4)])
def test_distillation_is_eq_3(num: int, width: int):
    students, teachers = [rows(num, width, s) for s in (1, 2)], [rows(num, width, s) for s in (3, 4)]
    center = rows(1, width, 5)[0]
    sharp = [teacher_distribution(outputs, center, 0.04) for outputs in teachers]
    ours = distillation((students[0], students[1]), (sharp[0], sharp[1]), 0.1)
    assert float(ours) == pytest.approx(naive_loss(students, teachers, center.tolist(), 0.1, 0.04), rel=EXACT)


def test_the_loss_is_lightlys():
    theirs = pytest.importorskip("lightly.loss").DINOLoss(output_dim=6, warmup_teacher_temp=0.04, teacher_temp=0.04)
    students, teachers = [rows(5, 6, s) for s in (1, 2)], [rows(5, 6, s) for s in (3, 4)]
    expected = theirs([t.float() for t in teachers], [s.float() for s in students], epoch=0)
    sharp = [teacher_distribution(outputs, torch.zeros(6), 0.04) for outputs in teachers]
    ours = distillation((students[0], students[1]), (sharp[0], sharp[1]), 0.1)
    assert float(ours) == pytest.approx(float(expected), rel=1e-5)  # lightly's center is float32
    center = torch.cat(teachers).mean(0) * 0.1  # Eq. 4 with m = 0.9 from 0
    torch.testing.assert_close(theirs.center.flatten().double(), center, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("num", "width"), [(2, 3), (6, 4)])
def test_koleo_is_the_papers_and_its_gradient_lightlys(num: int, width: int):
    features = rows(num, width, 1).requires_grad_()
    units = [row / row.norm() for row in features.detach()]
    nearest = [min(float((a - b).norm()) for j, b in enumerate(units) if j != i) for i, a in enumerate(units)]
    assert float(koleo(features).detach()) == pytest.approx(-math.fsum(map(math.log, nearest)) / num, abs=1e-7)  # eps
    theirs = pytest.importorskip("lightly.loss").KoLeoLoss()
    (ours,), (expected,) = (torch.autograd.grad(loss(features), features) for loss in (koleo, theirs))
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-9)


def test_koleo_of_both_large_views_is_added(task: Task):
    student, teacher = linear_model(7, seed=3), linear_model(7, seed=4)
    state = DINOState(target=teacher, center=Center(mean=torch.zeros(7)))
    plain, added = (DINO(koleo=k).loss(task, student, state, batch_of(), seeded(2)).loss for k in (0.0, 0.5))
    expected = 0.5 * sum(float(koleo(view)) for view in views(task))  # the encoder gives the pixels themselves
    assert float((added - plain).detach()) == pytest.approx(expected, rel=FORWARD)


def test_a_step_sees_both_views_and_moves_teacher_and_center(task: Task):
    student, teacher = linear_model(7, seed=3), linear_model(7, seed=4)
    center = rows(1, 7, 5)[0].float()
    objective, state = (
        DINO(momentum=0.8, center_momentum=0.6),
        DINOState(target=teacher, center=Center(mean=center.clone())),
    )
    output = objective.loss(task, student, state, batch_of(), seeded(2))
    pixels = views(task)
    students = [linear(view, student.projector) for view in pixels]
    outputs = [linear(view, teacher.projector) for view in pixels]
    expected = naive_loss(students, outputs, center.tolist(), 0.1, 0.04)
    assert float(output.loss.detach()) == pytest.approx(expected, rel=FORWARD)
    torch.testing.assert_close(output.projections.detach().double(), students[0], rtol=1e-5, atol=1e-5)
    before = teacher.projector.weight.clone()
    objective.finish_step(task, student, state, output)
    torch.testing.assert_close(teacher.projector.weight, 0.8 * before + 0.2 * student.projector.weight)
    mean = torch.cat(outputs).mean(0)
    torch.testing.assert_close(state.center.mean.double(), 0.6 * center + 0.4 * mean, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("amp", [False, True])
def test_the_heads_outputs_are_cosines_in_float32(amp: bool):
    torch.manual_seed(0)
    head = build_head("dino", 5, out=9, hidden=12)
    assert isinstance(head, nn.Sequential)
    features = torch.randn(4, 5)
    with torch.autocast("cpu", torch.bfloat16, enabled=amp):
        inner, outputs = head[:-1](features), head(features)
    assert inner.shape == (4, 256)
    assert outputs.dtype == torch.float32
    expected = F.cosine_similarity(inner.float().unsqueeze(1), head[-1].weight.unsqueeze(0), dim=2)
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)

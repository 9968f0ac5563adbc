"""Orchestra's losses and clusterings against naive loops."""

import pytest
import torch
from torch import Tensor, nn

from rayfed_ssl.methods.orchestra import Orchestra, agreement_loss, balanced_assignments, cluster_locally
from rayfed_ssl.objectives.moco import KeyQueue
from rayfed_ssl.objectives.orchestra import OrchestraObjective, OrchestraState, assignment_consistency
from rayfed_ssl.training.objective import Batch
from tests import naive
from tests.methods.conftest import Open
from tests.methods.steps import linear, pixels, projected, projected_to_unit
from tests.tensors import EXACT, seeded, unit_rows
from tests.training import naive_clustering as clustering


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize(("num", "clusters"), [(1, 2), (5, 3), (3, 7)])
def test_assignment_consistency_is_the_papers_cross_entropy(num: int, clusters: int, temperature: float):
    target, online, centroids = unit_rows(num, 4, 1), unit_rows(num, 4, 2), unit_rows(clusters, 4, 3)
    expected = clustering.orchestra_clustering(target.tolist(), online.tolist(), centroids.tolist(), temperature)
    assert float(assignment_consistency(target, online, centroids, temperature)) == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("tolerance", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("iterations", [1, 10, 100])
@pytest.mark.parametrize(("num", "clusters"), [(7, 3), (3, 5), (1, 2)])
def test_balanced_assignments_are_the_codes(num: int, clusters: int, iterations: int, tolerance: float):
    cosines = unit_rows(num, 4, 1) @ unit_rows(clusters, 4, 2).T
    expected = clustering.orchestra_sinkhorn(cosines.tolist(), 25, iterations, tolerance)
    got = balanced_assignments(cosines, 25, iterations, tolerance)
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize(("num", "copies", "k"), [(11, 0, 3), (6, 0, 6), (5, 0, 1), (3, 4, 3)])
def test_local_clusters_are_normalized_means_of_balanced_groups(num: int, copies: int, k: int):
    distinct = unit_rows(num, 4, 3)
    rows = torch.cat([distinct, distinct[:1].expand(copies, 4)])  # equal centroids leave groups empty
    num = len(rows)
    generator = seeded(6)
    centroids = rows[torch.randperm(num, generator=generator)[:k]].tolist()
    for _ in range(5):
        cosines = [[clustering.dot(row, centroid) for centroid in centroids] for row in rows.tolist()]
        balanced = clustering.orchestra_sinkhorn(cosines, 25, 10, 0.01)
        chosen = [row.index(max(row)) for row in balanced]
        others = rows[torch.randint(num, (k,), generator=generator)].tolist()
        for cluster in range(k):
            own = [row for row, c in zip(rows.tolist(), chosen, strict=True) if c == cluster]
            mean = [sum(column) for column in zip(*own, strict=True)] if own else others[cluster]
            centroids[cluster] = clustering.unit(mean)
    got = cluster_locally(rows, k, 25, 5, seeded(6))
    torch.testing.assert_close(got, torch.tensor(centroids, dtype=torch.float64), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("num", "clusters"), [(5, 3), (2, 4)])
def test_agreement_is_the_codes_cosine(num: int, clusters: int):
    local, centroids = unit_rows(num, 4, 1), unit_rows(clusters, 4, 2)
    balanced = balanced_assignments(local @ centroids.T, 25, 10)
    expected = clustering.orchestra_agreement(balanced.tolist(), local.tolist(), centroids.tolist(), 0.1)
    assert float(agreement_loss(balanced, local, centroids, 0.1)) == pytest.approx(expected, rel=EXACT)


def numeric_gradient(balanced: list[list[float]], local: list[list[float]], centroids: list[list[float]]) -> Tensor:
    """Central differences of the naive loss."""
    step = 1e-6
    gradient = torch.zeros(len(centroids), len(centroids[0]), dtype=torch.float64)
    for i, row in enumerate(centroids):
        for j in range(len(row)):
            sides = []
            for sign in (1, -1):
                moved = [list(other) for other in centroids]
                moved[i][j] += sign * step
                sides.append(clustering.orchestra_agreement(balanced, local, moved, 0.1))
            gradient[i, j] = (sides[0] - sides[1]) / (2 * step)
    return gradient


def test_global_clustering_descends_with_momentum_and_decay_on_the_sphere():
    local, start = unit_rows(5, 3, 1), unit_rows(4, 3, 2)
    centroids, velocity = start.clone(), torch.zeros_like(start)
    for _ in range(3):
        cosines = (local @ centroids.T).tolist()
        balanced = clustering.orchestra_sinkhorn(cosines, 25, 100, 0.01)
        gradient = numeric_gradient(balanced, local.tolist(), centroids.tolist()) + 1e-4 * centroids
        velocity = 0.9 * velocity + gradient
        centroids = centroids - 0.5 * velocity
        centroids = centroids / centroids.square().sum(1, keepdim=True).sqrt()
    got, metrics = Orchestra(global_steps=3, global_lr=0.5).cluster_globally(local, start, 0.1)
    # Central differences with steps of 1e-6 keep about nine digits.
    torch.testing.assert_close(got, centroids, rtol=1e-6, atol=1e-7)
    assert float((got - start).norm()) > 0.1
    assert set(metrics) == {"clustering_loss_first", "clustering_loss"}


def test_a_step_adds_consistency_and_the_rotation_of_a_third_view(open_tiny: Open):
    task = open_tiny("fedavg", "training.views=orchestra").task
    assert task.views.first != task.views.second
    images, target, centroids = pixels(6), linear(4), unit_rows(3, 5, 6).float()
    head = nn.Linear(5, 4)
    online = linear(3, heads={"degree": head})
    state = OrchestraState(target=target, centroids=centroids, queue=KeyQueue(torch.zeros(8, 5)))
    batch = Batch(images, torch.arange(6), None, 0)
    objective = OrchestraObjective(clusters=3)
    output = objective.loss(task, online, state, batch, seeded(2))

    generator = seeded(2)
    recipes = (task.views.first, task.views.second, task.views.first)
    first, second, third = (task.augment(images, recipe, generator) for recipe in recipes)
    turns = torch.randint(4, (6,), generator=generator)
    assert len(set(turns.tolist())) > 2
    rotated = torch.stack([view.rot90(int(turn), (1, 2)) for view, turn in zip(third, turns, strict=True)])
    seen, told = projected_to_unit(target, first), projected_to_unit(online, second)
    scores = projected(online, rotated) @ head.weight.double().T + head.bias.double()
    expected = clustering.orchestra_clustering(seen, told, centroids.double().tolist(), 0.1)
    expected += naive.cross_entropy(scores.tolist(), turns.tolist())
    # The forward pass is float32: 7 digits, of which sums over 64 pixels and T = 1/10 take two.
    assert float(output.loss.detach()) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(output.updates["seen"].double(), torch.tensor(seen).double(), rtol=1e-5, atol=1e-6)

    before = target.projector.weight.clone()
    objective.finish_step(task, online, state, output)
    moved = 0.996 * before + 0.004 * online.projector.weight
    torch.testing.assert_close(target.projector.weight, moved, rtol=1e-5, atol=1e-7)
    assert state.queue.rows[:6].equal(output.updates["seen"])
    assert state.queue.filled == 6

"""examples/: an objective, a partition and a dataset of one's own, by the names that their page gives."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from examples.mechanism_measures import main, rank_correlation, similarities_of
from examples.my_dataset import Shapes
from examples.my_objective import DCL, decoupled_loss
from examples.split_by_site import SITES
from examples.split_by_site import main as split_by_site
from examples.trimmed_mean import TrimmedMean, trimmed_mean
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.randomness.seeds import generator
from rayfed_ssl.runs import run
from rayfed_ssl.testing import LAWS, check_objective, toy_config
from rayfed_ssl.testing.trial import Trial
from tests.naive import cosine
from tests.tensors import EXACT, rows

Tiny = Callable[..., Config]


def test_the_loss_leaves_the_positive_pair_out_of_the_denominator():
    first, second = rows(4, 3, 1), rows(4, 3, 2)
    views, total = [*first.tolist(), *second.tolist()], 0.0
    for i, view in enumerate(views):
        others = [other for j, other in enumerate(views) if j % 4 != i % 4]
        positive = cosine(view, views[(i + 4) % 8]) / 0.2
        total += math.log(math.fsum(math.exp(cosine(view, other) / 0.2) for other in others)) - positive
    assert float(decoupled_loss(first, second, 0.2)) == pytest.approx(total / 8, rel=1e2 * EXACT)


@pytest.mark.slow
def test_the_objective_obeys_the_laws():
    check_objective(DCL())


def test_the_partition_gives_every_client_samples_and_skews_sizes_alone(tiny: Tiny):
    name = "partition={name: 'examples.my_partition:log_normal', sigma: 1.5}"
    sizes = [len(shard) for shard in Federation.open(tiny("fedavg", name, "clients.number=10")).shards.values()]
    assert min(sizes) >= 2
    assert max(sizes) > 3 * min(sizes)
    even = Federation.open(tiny("fedavg", name, "partition.sigma=0.0", "clients.number=10")).shards.values()
    assert len({len(shard) for shard in even}) == 1


def test_the_views_draw_anew_for_each_image_and_view(tiny: Tiny):
    task = Federation.open(tiny("fedavg", "training.views=examples.my_views:mild")).task
    images = torch.arange(64, dtype=torch.uint8).view(1, 1, 8, 8).repeat(3, 1, 1, 1)
    views = task.stacked_views(images, generator(1))
    assert views.shape == (6, 1, 8, 8)
    assert len(views.flatten(1).unique(dim=0)) == 6
    assert torch.equal(views, task.stacked_views(images, generator(1)))


def test_the_dataset_is_opened_by_its_name_with_both_splits(tiny: Tiny):
    dataset = Federation.open(tiny("fedavg", "data={name: 'examples.my_dataset:Shapes'}")).dataset
    assert (len(dataset.train), len(dataset.test), dataset.has_test) == (600, 150, True)
    assert dataset.train.classes == Shapes.classes
    picture, kind = Shapes(train=False)[7]
    assert np.array_equal(dataset.test.images[7], picture)
    assert dataset.test.labels[7] == kind


def test_similarities_are_compared_by_scipys_ranks_without_each_images_own():
    first, second = rows(9, 9, 1), rows(9, 9, 2).round(decimals=0)  # with ties
    others = [[j for j in range(9) if j != i] for i in range(9)]
    expected = [float(spearmanr(first[i, js], second[i, js]).statistic) for i, js in enumerate(others)]
    assert rank_correlation(first, second) == pytest.approx(sum(expected) / 9, rel=1e-9)  # float64 ranks


def test_clients_their_mean_and_the_student_are_compared_with_a_centralized_run(tiny: Tiny, tmp_path: Path):
    def made(name: str, *settings: str) -> str:
        return str(run(tiny(*settings), tmp_path / name).directory)

    local, flesd = made("local", "local"), made("flesd", "flesd")
    centralized = made("centralized", "local", "partition={name: pooled}", "rounds=1")
    found = main(["similarities", local, centralized, flesd])
    alone, pooled, distilled = (similarities_of(Path(path))[1] for path in (local, centralized, flesd))
    (reference,), (student,) = pooled.values(), distilled.values()
    mean = sum(((rows - 1) / 0.1).exp() for rows in alone.values()) / 3
    expected = {name: rank_correlation(rows, reference) for name, rows in (alone | {"ensemble": mean}).items()}
    assert found == pytest.approx(expected | {"student": rank_correlation(student, reference)}, abs=1e-6)
    assert len(set(found.values())) == 5
    with pytest.raises(ValueError, match="name three of one seed"):
        main(["similarities", local, centralized, made("other", "flesd", "seed=1")])
    with pytest.raises(ValueError, match="an encoder of each client, got 1"):
        main(["similarities", centralized, local, flesd])
    with pytest.raises(ValueError, match="the second run is to be centralized, got partition="):
        main(["similarities", local, flesd, flesd])


def test_orchestras_clusters_are_compared_with_classes(tiny: Tiny, tmp_path: Path):
    objective = "objective={name: orchestra, clusters: 6, local_clusters: 4, memory: 16}"
    config = tiny("orchestra", objective, "rounds=4", "training.epochs=3", "data.train_limit=600")
    found = main(["clusters", str(run(config, tmp_path / "run").directory)])
    assert 0.05 < found["adjusted mutual information"] < 1  # of shuffled labels it is within 0.03 of 0
    assert 1 < found["clusters used"] <= 6


def test_the_trimmed_mean_leaves_out_extremes_and_holds_what_it_says():
    stacked = [rows(3, 2, seed) for seed in range(5)]
    mean = trimmed_mean([{"w": values} for values in stacked], 0.2)["w"]
    for place in np.ndindex(3, 2):
        assert float(mean[place]) == pytest.approx(
            sum(sorted(float(each[place]) for each in stacked)[1:4]) / 3, rel=EXACT
        )
    trial = Trial(toy_config(TrimmedMean()))
    for law in ("uploads_are_not_hoarded", "order_is_irrelevant", "clients_may_drop_out", "sums_alone_decide"):
        LAWS[law](trial)


def test_the_page_names_every_law():
    page = (Path(__file__).parents[1] / "docs/own-method.md").read_text()
    for name, law in LAWS.items():
        assert f"| `{name}` | {law.__doc__.splitlines()[0].rstrip('.')} |" in page


def test_a_split_by_site_has_a_client_for_each_site_and_one_that_is_inverted(tiny: Tiny, tmp_path: Path):
    split_by_site(tmp_path / "scans", train=100, test=20)
    data = f"data={{name: folder, path: {tmp_path / 'scans'}}}"
    federation = Federation.open(tiny("fedavg", data, "partition={name: column, column: site}", "clients.number=5"))
    assert tuple(federation.client_names.values()) == SITES
    images, shards = federation.dataset.train.images, federation.shards
    assert [bool(images[shards[client]].mean() > 127) for client in shards] == [False] * 4 + [True]
    assert len(federation.dataset.test) == 20

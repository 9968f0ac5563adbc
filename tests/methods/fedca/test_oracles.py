"""FedCA's equations 4 to 13 against naive loops."""

import pytest
import torch
from torch import nn

from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.methods import FedCA, fedca
from rayfed_ssl.training.objective import Batch
from tests.methods.conftest import Open
from tests.methods.fedca import naive as naive_fedca
from tests.methods.steps import client_of, linear, pixels, projected, projected_to_unit
from tests.tensors import EXACT, rows, seeded, unit_rows


@pytest.mark.parametrize("temperature", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(("num", "size", "dim"), [(1, 3, 2), (2, 1, 3), (5, 7, 4), (4, 0, 3)])
def test_the_contrast_is_eq_4_to_8(num: int, size: int, dim: int, temperature: float):
    first, second, dictionary = unit_rows(num, dim, 1), unit_rows(num, dim, 2), unit_rows(size, dim, 3)
    expected = naive_fedca.contrast(first.tolist(), second.tolist(), dictionary.tolist(), temperature)
    found = float(fedca.dictionary_contrast(first, second, dictionary, temperature))
    assert found == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 0.99])
@pytest.mark.parametrize("num_rounds", [1, 2, 5])
def test_temporal_ensembling_is_eq_9_and_10(num_rounds: int, alpha: float):
    projections = [rows(3, 4, seed) for seed in range(num_rounds)]
    found = None
    for z in projections:
        found = fedca.ensemble(found, z, alpha)
    for sample in range(3):
        z_bar, unit = naive_fedca.ensembled([z[sample].tolist() for z in projections], alpha)
        torch.testing.assert_close(found[sample], torch.tensor(z_bar, dtype=torch.float64), rtol=EXACT, atol=1e-15)
        expected = torch.tensor(unit, dtype=torch.float64)
        torch.testing.assert_close(fedca.normalized(found)[sample], expected, rtol=EXACT, atol=1e-15)


@pytest.mark.parametrize(("num", "features", "dim"), [(1, 3, 2), (4, 5, 3), (3, 2, 6)])
def test_alignment_is_eq_11_to_13(num: int, features: int, dim: int):
    h_u, z_u, h_align, z_align = (rows(num, w, seed) for seed, w in enumerate((features, dim, features, dim)))
    expected = naive_fedca.alignment(h_u.tolist(), z_u.tolist(), h_align.tolist(), z_align.tolist())
    assert float(fedca.alignment_loss(h_u, z_u, (h_align, z_align))) == pytest.approx(expected, rel=EXACT)


def test_a_sample_that_was_always_projected_to_zero_stays_finite():
    assert bool(fedca.normalized(fedca.ensemble(None, torch.zeros(2, 3), 0.5)).isfinite().all())


@pytest.mark.parametrize(("size", "clients"), [(1024, 5), (1024, 1), (7, 3), (2, 3), (0, 2)])
def test_shares_of_the_dictionary_sum_to_its_size_and_differ_by_one_at_most(size: int, clients: int):
    shares = [fedca.share_of(size, position, clients) for position in range(clients)]
    assert sum(shares) == size
    assert max(shares) - min(shares) <= 1


def test_a_step_contrasts_two_views_with_the_dictionary(open_tiny: Open):
    task = open_tiny("fedca", "training.views=orchestra", "objective.temperature=0.5").task
    assert task.views.first != task.views.second
    images, dictionary, model = pixels(6, 1), unit_rows(7, 5, 3).float(), linear()
    batch = Batch(images, torch.arange(6), None, 0)
    terms = FedCA().contrast(task, seeded(), dictionary, model, nn.Module(), batch)
    generator = seeded()
    views = [task.augment(images, recipe, generator) for recipe in (task.views.first, task.views.second)]
    first, second = (projected_to_unit(model, view) for view in views)
    expected = naive_fedca.contrast(first, second, dictionary.double().tolist(), 0.5)
    # The forward pass is float32: 7 digits, divided by a temperature of 1/2.
    assert float(terms.loss.detach()) == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(terms.projections.detach().double(), projected(model, views[0]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("num_public", "batch", "sub"), [(9, 4, 4), (3, 32, 3)])
def test_a_step_aligns_on_a_random_batch_of_public_samples(open_tiny: Open, num_public: int, batch: int, sub: int):
    """beta times the sum over D_sub, |D_sub| = min(N, P), another one each step."""
    task = open_tiny("fedca", f"training.batch={batch}").task
    public, model = Shard(pixels(num_public, 1), torch.arange(num_public)), linear()
    aligned = fedca.Aligned(rows(num_public, 64, 4).float(), rows(num_public, 5, 5).float())
    term = FedCA(beta=0.25).alignment(client_of(task, public, public), aligned)
    generator, drawn = seeded(), []
    for _ in range(3):
        index = torch.randperm(num_public, generator=generator)[:sub]
        drawn.append(sorted(index.tolist()))
        h = normalize(public.images[index], task.views.first).flatten(1).double()
        z = projected(model, h)
        outputs = (h.tolist(), z.tolist(), aligned.features[index].tolist(), aligned.projections[index].tolist())
        found = float(term(model, torch.zeros(1)).detach())
        assert found == pytest.approx(0.25 * naive_fedca.alignment(*outputs), rel=1e-5)  # the forward pass is float32
    assert len({tuple(index) for index in drawn}) > 1 or sub == num_public

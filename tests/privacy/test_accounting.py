"""Epsilon against dp-accounting called by hand, and against the closed form of composed Gaussians."""

import math
from collections.abc import Callable

import dp_accounting as dp
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import minimize_scalar

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.privacy.accounting import epsilon
from rayfed_ssl.privacy.protection import accounted

Tiny = Callable[..., Config]
Open = Callable[..., Federation]

UNIFORM = "method.weighting=uniform"


def by_hand(event: dp.DpEvent, times: int, delta: float) -> float:
    accountant = RdpAccountant(neighboring_relation=dp.NeighboringRelation.REPLACE_ONE)
    return float(accountant.compose(event, times).get_epsilon(delta))


def closed_form(rho: float, delta: float) -> float:
    """Least over alpha of RDP rho alpha, converted (Canonne, Kamath and Steinke 2020, proposition 12)."""

    def converted(log: float) -> float:
        alpha = 1 + math.exp(log)
        return rho * alpha + math.log1p(-1 / alpha) - math.log(delta * alpha) / (alpha - 1)

    return float(minimize_scalar(converted, bounds=(-5, 8), method="bounded").fun)


@pytest.mark.parametrize(("z", "rounds", "delta"), [(1.0, 20, 1e-5), (4.0, 100, 1e-6), (0.5, 1, 1e-3)])
def test_epsilon_of_gaussians_is_the_closed_form(z: float, rounds: int, delta: float):
    spent = epsilon({0: rounds * 4 / z**2, 1: 4 / z**2}, delta)
    assert spent == pytest.approx(by_hand(dp.GaussianDpEvent(z / 2), rounds, delta), rel=1e-9)  # 1 / sigma^2, and back
    least = closed_form(rounds * 4 / z**2 / 2, delta)
    assert least <= spent * (1 + 1e-9)  # the search stops this near the minimum
    assert spent <= least * 1.02  # the library looks at whole and half orders


@pytest.mark.parametrize(
    ("cohort", "clients", "z", "rounds"), [(10, 100, 1.0, 20), (5, 50, 2.0, 40), (3, 1000, 0.6, 7)]
)
def test_epsilon_of_secret_cohorts_is_that_of_sampling_without_replacement(
    cohort: int, clients: int, z: float, rounds: int
):
    event = dp.SampledWithoutReplacementDpEvent(clients, cohort, dp.GaussianDpEvent(z / 2))
    spent = epsilon(dict.fromkeys(range(rounds), 4 / z**2), 1e-5, (cohort, clients))
    assert spent == pytest.approx(by_hand(event, rounds, 1e-5), rel=1e-9)
    assert spent < epsilon({0: rounds * 4 / z**2}, 1e-5)


def test_a_cohort_of_almost_all_clients_never_costs_more_than_one_of_all():
    costs = dict.fromkeys(range(20), 1.0)
    assert epsilon(costs, 1e-5, (5, 6)) == epsilon({0: 20.0}, 1e-5)


def test_nothing_is_spent_before_the_first_round():
    assert epsilon({}, 1e-5) == epsilon({}, 1e-5, (1, 2)) == 0


def test_a_run_spends_what_was_planned_and_more_where_clients_drop_out(open_tiny: Open):
    federation = open_tiny("fedavg", UNIFORM, "privacy={clip: 1.0, noise: 2.0}", "clients.number=4")
    uploads = {
        client_id: federation.update_client(1, client_id, federation.method.download(state, client_id), None).upload
        for state in [federation.init_server()]
        for client_id in federation.cohort(1)
    }
    first = federation.update_server(1, federation.init_server(), uploads)
    assert first.metrics["epsilon"] == pytest.approx(by_hand(dp.GaussianDpEvent(1.0), 1, 1e-5))
    second = federation.update_server(2, first.state, uploads)
    assert second.metrics["epsilon"] == federation.planned_epsilon()
    fewer = federation.update_server(1, federation.init_server(), dict(list(uploads.items())[:1]))
    assert fewer.metrics["epsilon"] == pytest.approx(by_hand(dp.GaussianDpEvent(math.sqrt(1 / 4)), 1, 1e-5))


def test_fields_and_the_count_of_an_adaptive_clip_add_up(open_tiny: Open):
    fedsc = open_tiny("fedsc", UNIFORM, "privacy={clip: 1.0, noise: 2.0, clip_quantile: 0.5}")
    budget = accounted(fedsc.method)
    assert budget is not None
    assert budget.cost(3, fedsc.task) == pytest.approx(2 * (1 + 1 / 10**2))
    assert budget.cost(2, fedsc.task) == pytest.approx((3 / 2 + 1) * (1 + 1 / 10**2))


@pytest.mark.parametrize("name", ["fedavg", "flesd"])
def test_what_is_sent_under_a_name_hides_no_cohort(open_tiny: Open, name: str):
    """Sums over cohorts are drawn in secret; of single uploads the client that took part most often counts."""
    settings = [UNIFORM] * (name == "fedavg")
    federation = open_tiny(
        name, *settings, "privacy={clip: 1.0, noise: 2.0}", "clients.number=6", "clients.fraction=0.34", "rounds=8"
    )
    cohorts = [federation.cohort(round) for round in range(1, 9)]
    if name == "fedavg":
        event = dp.SampledWithoutReplacementDpEvent(6, 2, dp.GaussianDpEvent(1.0))
        expected = by_hand(event, 8, 1e-5)
    else:
        most = max(sum(client in cohort for cohort in cohorts) for client in federation.client_ids)
        assert most < 8
        expected = by_hand(dp.GaussianDpEvent(1.0), most, 1e-5)
    assert federation.planned_epsilon() == pytest.approx(expected)


def test_a_missing_library_is_one_line_before_the_run(open_tiny: Open, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rayfed_ssl.privacy.accounting.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"^privacy.noise needs dp-accounting, .* pip install 'rayfed-ssl\[privacy\]'$"
    ):
        open_tiny("fedavg", UNIFORM, "privacy={clip: 1.0, noise: 2.0}")
    open_tiny("fedavg", UNIFORM, "privacy.clip=1.0")

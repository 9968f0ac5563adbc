"""Secure aggregation: exact sums in fixed point, counted keys and shares, and a server that sees one upload."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rayfed_ssl import run
from rayfed_ssl.config.recipes import recipe_names
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.ledger import total
from rayfed_ssl.engine.round_loop import ClientError, ServerError
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Metrics
from rayfed_ssl.methods import FCL, LDAWA, FedAvg, FedMD, FedU2
from rayfed_ssl.methods.fedavg import Averaging
from rayfed_ssl.privacy.secure_sum import MAX_SAMPLES, SecureSum, Upload, encode, num_neighbors, overhead
from rayfed_ssl.testing import LAWS, Trial
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import leaves, map_leaves, map_together
from tests.conftest import TinyConfig

RESOLUTION = 2.0**-25
"""Half of 2^-24: what rounding to fixed point moves a mean by, where factors are 1 or more."""

SECURE = "privacy.secure_sum=true"

SIZES = {0: 3, 4: 50, 7: 7}


@dataclass(frozen=True)
class Message:
    weights: dict[str, Tensor]
    num_samples: int
    extra: Tensor | None = None


def messages(scale: float = 1.0) -> dict[int, Message]:
    random = torch.Generator().manual_seed(3)
    return {
        client_id: Message({"w": scale * torch.randn(4, 3, generator=random), "steps": torch.tensor(client_id)}, size)
        for client_id, size in SIZES.items()
    }


def secure_sum(**fields: Any) -> SecureSum:
    settings = {"method": FedAvg(), "protocol": "secagg", "cohort": 3, "samples": 60}
    return SecureSum(**{**settings, **fields})


def masked(secure: SecureSum, sent: dict[int, Message]) -> dict[int, Upload]:
    return {client_id: secure.mask(message, SIZES[client_id]) for client_id, message in sent.items()}


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_a_secure_mean_is_the_exact_one_within_the_resolution(weighting: Any):
    secure, sent = secure_sum(method=FedAvg(weighting=weighting)), messages()
    ((client_id, stand_in),) = secure.stand_in(masked(secure, sent)).items()
    factors = {k: size if weighting == "samples" else 1 for k, size in SIZES.items()}
    exact = sum(factors[k] * sent[k].weights["w"].double() for k in sent) / sum(factors.values())
    # float32 rounds the decoded mean once more, by 2^-24 of it.
    torch.testing.assert_close(stand_in.weights["w"].double(), exact, rtol=2**-24, atol=RESOLUTION)
    steps = round(sum(factors[k] * k for k in sent) / sum(factors.values()))
    assert (client_id, stand_in.num_samples, stand_in.extra) == (0, 60, None)
    assert torch.equal(stand_in.weights["steps"], torch.tensor(steps))


def test_neither_masks_nor_the_order_of_uploads_change_a_bit():
    """Masks of each pair of clients, added by one and subtracted by the other modulo 2^64, cancel in the sum."""
    secure, uploads = secure_sum(), masked(secure_sum(), messages())

    def with_masks(sign: int, seed: int, upload: Upload) -> Upload:
        random = torch.Generator().manual_seed(seed)

        def add(leaf: Any) -> Any:
            mask = torch.randint(-(2**63), 2**63 - 1, getattr(leaf, "shape", ()), generator=random)
            return leaf + sign * mask if isinstance(leaf, Tensor) else leaf

        return replace(upload, masked=map_leaves(add, upload.masked))

    hidden = {
        0: with_masks(1, 2, with_masks(1, 1, uploads[0])),
        4: with_masks(1, 3, with_masks(-1, 1, uploads[4])),
        7: with_masks(-1, 3, with_masks(-1, 2, uploads[7])),
    }
    expected = dict(leaves(secure.stand_in(uploads)))
    for others in (hidden, dict(reversed(uploads.items()))):
        found = dict(leaves(*secure.stand_in(others).values(), "/0"))
        assert found.keys() == expected.keys()
        assert all(
            torch.equal(torch.as_tensor(found[p]), torch.as_tensor(v)) for p, v in expected.items() if v is not None
        )


def test_the_largest_allowed_sum_fits():
    encoded = encode({"w": torch.tensor([-65536.0]), "n": torch.tensor([2**40])}, float(MAX_SAMPLES))
    assert encoded["w"].values.item() == -MAX_SAMPLES * 2**40
    assert encoded["n"].item() == MAX_SAMPLES * 2**40 < 2**63


@pytest.mark.parametrize("value", [70_000.0, float("nan"), float("-inf")])
def test_a_number_out_of_range_is_refused(value: float):
    with pytest.raises(ValueError, match=r"^its upload holds a number beyond 65,536, or not finite, .*: lower"):
        encode({"w": torch.tensor([0.0, value])}, 1.0)


def test_what_has_no_sum_is_refused():
    secure = secure_sum()
    with pytest.raises(ValueError, match="its upload holds a str"):
        encode({"architecture": "cnn"}, 1.0)
    with pytest.raises(ValueError, match="lies between 0 and its client's 2 samples, got 3"):
        secure.mask(messages()[0], 2)
    with pytest.raises(ValueError, match=r"one upload hides nothing: raise engine\.quorum"):
        secure.stand_in({4: masked(secure, messages())[4]})
    with pytest.raises(ValueError, match="trees of different forms"):
        map_together(torch.add, {"w": torch.ones(2)}, {"w": torch.ones(3)})


class Explodes(FedAvg):
    """Claims what FedAvg does, and sends huge numbers."""

    def train(self, *given: Any, **options: Any) -> tuple[Any, Any, Metrics]:
        upload, state, metrics = super().train(*given, **options)
        return replace(upload, weights={name: value * 10**7 for name, value in upload.weights.items()}), state, metrics


def test_a_client_out_of_range_fails_in_one_line(tiny: TinyConfig):
    federation = Federation.open(tiny("fedavg", SECURE).model_copy(update={"method": Explodes()}))
    with pytest.raises(ClientError, match=r"^client 0 failed in round 1 .*beyond 65,536") as error:
        federation.update_client(1, 0, federation.method.download(federation.init_server(), 0), None)
    assert "\n" not in str(error.value)


def test_sums_that_could_overflow_are_refused_before_the_run(open_tiny: Callable[..., Federation]):
    task = open_tiny("fedavg").task
    secure_sum(samples=MAX_SAMPLES).check(task, 0)
    with pytest.raises(ValueError, match=r"above 8,388,607 samples a round, got 8,388,608: lower clients\.fraction"):
        secure_sum(samples=MAX_SAMPLES + 1).check(task, 0)
    with pytest.raises(ConfigError, match=r"got 1 client a round: raise clients\.fraction"):
        open_tiny("fedavg", SECURE, "clients.fraction=0.1")


def test_a_method_that_looks_at_single_uploads_is_refused(tiny: TinyConfig):
    message = r"the server of fedca, as it is set, looks at single uploads: take a method that sums \(fedavg, fedprox, "
    with pytest.raises(ConfigError, match=message):
        tiny("fedca", SECURE)
    with pytest.raises(ConfigError, match="the server of fedmd, as it is set"):
        tiny("fedmd", SECURE, "method.upload_format=int8")
    with pytest.raises(ConfigError, match=r"secure_protocol has no meaning without privacy\.secure_sum"):
        tiny("fedavg", "privacy.secure_protocol=secagg+")


def test_claims_follow_what_is_set():
    assert [Averaging.aggregate is LDAWA.aggregate, LDAWA().secure_sum] == [False, False]  # it names no `sends` itself
    assert [FedMD().secure_sum, FedMD(upload_format="int8").secure_sum] == [True, False]
    assert [FCL().secure_sum, FCL(fusion=False, neighborhood=0).secure_sum] == [False, True]
    assert [FedU2().secure_sum, FedU2(aggregator="mean").secure_sum] == [False, True]


@pytest.mark.parametrize("name", ["fedavg", "fedmd", "fedema"])
def test_a_server_has_the_state_of_a_plain_run_within_the_resolution(open_tiny: Callable[..., Federation], name: str):
    byol = ("objective=byol", "objective.hidden=32") if name == "fedema" else ()
    (plain,), (secure,) = (play(open_tiny(name, *byol, *settings), 1) for settings in ((), (SECURE,)))
    expected, found = dict(leaves(plain.server)), dict(leaves(secure.server))
    assert found.keys() == expected.keys()
    for path, value in expected.items():
        if not isinstance(value, Tensor):
            assert found[path] == value
        else:  # a plain sum of float32 is rounded a few times, by 2^-24 of it
            torch.testing.assert_close(found[path], value, rtol=2**-21, atol=RESOLUTION)
    assert secure.metrics.keys() == plain.metrics.keys()


def test_those_that_deliver_are_summed(open_tiny: Callable[..., Federation]):
    plain, secure = (open_tiny("fedavg", *settings) for settings in ((), (SECURE,)))
    (before,), (round,) = play(plain, 1), play(secure, 1)
    expected = plain.update_server(1, before.server_before, {k: before.uploads[k] for k in (1, 2)}).state
    found = secure.update_server(1, round.server_before, {k: round.uploads[k] for k in (1, 2)}).state
    torch.testing.assert_close(found.weights, expected.weights, rtol=2**-21, atol=RESOLUTION)
    with pytest.raises(ServerError, match=r"^the server failed in round 1: a secure sum of one upload hides nothing"):
        secure.update_server(1, round.server_before, {2: round.uploads[2]})


@pytest.mark.parametrize(("cohort", "neighbors"), [(10, 4), (100, 28), (1000, 72), (10_000, 86)])
def test_neighbors_are_those_of_the_authors_implementation(cohort: int, neighbors: int):
    """5 % corrupt and 33 % dropped clients, a semi-honest server: google-parfait/federated-compute's own test."""
    assert num_neighbors(cohort) == neighbors


def test_keys_and_shares_are_counted_by_the_papers_formulas():
    assert sum(overhead("secagg", 500)) == 2 * 500 * 32 + (5 * 500 - 4) * 32  # 2 n a_K + (5 n - 4) a_S
    assert overhead("secagg+", 1000) == (2 * 72 * 32 + 2 * 72 * 32, 2 * 32 + (3 * 72 + 1) * 32)


def test_the_ledger_counts_masked_values_keys_and_shares(open_tiny: Callable[..., Federation]):
    (plain,), (secure,) = (play(open_tiny("fedavg", *settings), 1) for settings in ((), (SECURE,)))
    numbers = sum(value.numel() for value in plain.uploads[0].weights.values())
    rows = [(row.direction, row.kind, row.field, row.bytes) for row in secure.results[0].ledger]
    weights = total(plain.results[0].ledger, "down")
    assert rows == [
        ("down", "weights", "base.weights", weights),
        ("down", "keys and shares", "keys_and_shares", 2 * 2 * 32 + 2 * 2 * 32),  # of two others
        ("up", "masked values", "masked", 8 * numbers + 8),
        ("up", "masked values", "factor", 8),
        ("up", "keys and shares", "keys_and_shares", 2 * 32 + (3 * 3 - 2) * 32),
    ]


def test_a_run_is_named_after_its_method_and_says_that_nothing_is_encrypted(tiny: TinyConfig, tmp_path: Path):
    config = tiny("fedavg", SECURE, "privacy.secure_protocol=secagg+", "rounds=1")
    manifest = run(config, tmp_path / "run").record.manifest
    assert (config.method_name, config.system) == ("fedavg", "fedavg")
    assert any(
        re.match(r"secure aggregation \(secagg\+\) is simulated: .* no cryptography runs", n) for n in manifest.notes
    )


@pytest.mark.parametrize(
    "law",
    [
        *("inputs_are_not_written", "messages_are_plain", "order_is_irrelevant", "uploads_are_not_hoarded"),
        *("resuming_changes_nothing", "states_survive_storage"),
    ],
)
def test_a_secure_run_obeys_the_laws(secure_trial: Trial, law: str):
    LAWS[law](secure_trial)


@pytest.fixture(scope="module")
def secure_trial(tiny: TinyConfig) -> Trial:
    return Trial(tiny("fedavg", SECURE))


def test_the_table_of_methods_says_which_allow_it():
    page = (Path(__file__).parents[2] / "docs" / "methods" / "index.md").read_text()
    said = {}
    for names, cell in re.findall(r"^\| (`.*?) \|.*\| (yes|no) \|$", page, flags=re.M):
        first, *others = re.findall(r"`([\w-]+)`", names)
        said |= {first: cell} | {(name if name[0] != "-" else "fedfoa" + name): cell for name in others}
    assert said.keys() == set(recipe_names()) & said.keys()
    assert {name: "yes" if Config.load(name).method.secure_sum else "no" for name in said} == said
    assert len(said) > 25

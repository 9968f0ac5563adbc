"""Runs with adapters: what goes down and up, what is kept, and what is shown."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.virtual_time import _cost, work_of
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.export.encoders import export_encoder
from rayfed_ssl.privacy.protection import accounted
from rayfed_ssl.runs import run
from rayfed_ssl.storage.encoder_file import load_encoder
from rayfed_ssl.testing.trial import Round, open_afresh, play
from rayfed_ssl.trees import Weights, leaves, nbytes

Tiny = Callable[..., Config]

MODEL = "model={{encoder: vit-micro, projection_dim: 16, adapters: {}}}"
LORA = MODEL.format("{name: lora, rank: 4, alpha: 6}")
BYOL = ("objective=byol", "objective.hidden=32")
SVD = ("model.adapters.aggregation=svd",)

WIDTH, RANK, BLOCKS = 128, 4, 4
PATCHES = WIDTH * (1 * 2 * 2) + WIDTH + 4 * 4 * WIDTH  # kernel of 2 x 2 on one channel, bias, 4 x 4 positions
BLOCK = 12 * WIDTH**2 + 13 * WIDTH
FROZEN = 4 * (PATCHES + BLOCKS * BLOCK + 2 * WIDTH)
FACTORS = 4 * BLOCKS * RANK * ((1 + 3) + (1 + 1) + (1 + 4) + (4 + 1)) * WIDTH
PROJECTOR = 4 * (WIDTH * WIDTH + WIDTH + 16 * WIDTH + 16)


def moved(round: Round, client: int) -> dict[tuple[str, str], int]:
    return {(entry.direction, entry.kind): entry.bytes for entry in round.results[client].ledger}


def names(tree: object) -> set[str]:
    return {path.rpartition("/")[2] for path, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)}


def is_trained(name: str) -> bool:
    """Whether an entry is of an adapter or of a head."""
    return "lora_" in name or "encoder." not in name


def test_frozen_weights_go_down_once_to_each_client_and_never_up(tiny: Tiny):
    config = tiny("fedavg", LORA, "clients.number=5", "clients.fraction=0.5", "rounds=3")
    federation, started = open_afresh(config), set[int]()
    for round in play(federation):
        for client in round.results:
            expected = {("down", "weights"): FACTORS + PROJECTOR, ("up", "weights"): FACTORS + PROJECTOR}
            expected |= {("up", "statistics"): 8} | ({} if client in started else {("down", "frozen weights"): FROZEN})
            assert moved(round, client) == expected
        started |= {*round.results}
    assert 0 < len(started) < 5 * 3  # some came back


@pytest.mark.parametrize(
    ("adapters", "encoder"),
    [
        ("{name: lora, rank: 4, aggregation: ffa, where: qkv}", BLOCKS * RANK * 3 * WIDTH),
        ("norms", (BLOCKS * 4 + 2) * WIDTH),
        ("bias", BLOCKS * 11 * WIDTH + 2 * WIDTH),
        ("head", 0),
    ],
)
def test_what_is_sent_is_what_is_trained(tiny: Tiny, adapters: str, encoder: int):
    (round,) = play(open_afresh(tiny("fedavg", MODEL.format(adapters), "rounds=1")))
    up = moved(round, 0)["up", "weights"]
    assert up == moved(round, 0)["down", "weights"] == 4 * encoder + PROJECTOR


def test_a_client_remembers_the_targets_adapters_and_no_frozen_weight(tiny: Tiny):
    *_, last = play(open_afresh(tiny("fedavg", LORA, *BYOL)))
    for result in last.results.values():
        remembered = names(result.state)
        assert any("lora_B" in name for name in remembered)
        assert all(is_trained(name) and name.startswith("target.") for name in remembered)


def test_a_target_shares_what_is_frozen_and_has_adapters_of_its_own(tiny: Tiny):
    federation = open_afresh(tiny("fedavg", LORA, *BYOL))
    task = federation.trained_task
    model = task.model(task.initial_weights())
    twin = dict(task.twin(model).encoder.named_parameters())
    for name, value in model.encoder.named_parameters():
        assert (twin[name] is value) == ("lora_" not in name)


def test_training_moves_nothing_that_is_frozen(tiny: Tiny):
    federation = open_afresh(tiny("fedavg", LORA, *BYOL, "training.optimizer.weight_decay=0.1"))
    played, start = play(federation), federation.task.initial_weights()
    assert names(played[-1].server.base) == {n for n in start if n.startswith("encoder.")}
    assert all(torch.equal(value, start[name]) for name, value in played[-1].server.base.items())


PROTECTED = {
    "secure sums": ("privacy.secure_sum=true",),
    "noise": ("method.weighting=uniform", "privacy={clip: 1.0, noise: 0.01, clip_quantile: 0.5}"),
    "noise of samples": (
        "objective=rotation",
        "model.projection_dim=null",
        "privacy={level: sample, clip: 1, noise: 0.1}",
    ),
    "a rule": ("robust=median",),
    "a hostile client": ("robust=median", "adversary=sign-flip"),
    "a bad encoder": ("adversary={name: bad-encoder, tuning_epochs: 1}",),
}


@pytest.mark.parametrize("settings", PROTECTED.values(), ids=PROTECTED)
def test_what_protects_uploads_sees_adapters_alone(tiny: Tiny, settings: tuple[str, ...]):
    for round in play(open_afresh(tiny("fedavg", LORA, *settings))):
        for result in round.results.values():
            assert all(is_trained(name) for name in names(result.upload) if "." in name)
            assert any("lora_B" in path for path, _ in leaves(result.upload))


def test_noise_is_compared_with_the_number_of_trained_weights(tiny: Tiny):
    config = tiny("fedavg", LORA, "method.weighting=uniform", "privacy={clip: 1.0, noise: 1.0}")
    federation = open_afresh(config)
    warning = accounted(federation.method).noise_warning(federation.trained_task)
    assert f"{(FACTORS + PROJECTOR) // 4:,} weights" in warning


def test_the_gap_is_between_the_mean_of_products_and_the_product_of_means(tiny: Tiny):
    (round,) = play(open_afresh(tiny("fedavg", LORA, "rounds=1", "training.epochs=3", "training.optimizer.lr=0.01")))
    shares = {k: upload.num_samples for k, upload in round.uploads.items()}
    missed = size = 0.0
    for name in round.uploads[0].weights:
        if name.endswith("lora_B.weight"):
            other, total = name.replace("lora_B", "lora_A"), sum(shares.values())
            a, b = (
                {k: upload.weights[factor].double() for k, upload in round.uploads.items()} for factor in (other, name)
            )
            wanted = sum(shares[k] * b[k] @ a[k] for k in shares) / total
            made = sum(shares[k] * b[k] for k in shares) @ sum(shares[k] * a[k] for k in shares) / total**2
            missed, size = missed + float((wanted - made).norm() ** 2), size + float(wanted.norm() ** 2)
    assert round.metrics["adapter_gap"] == pytest.approx((missed / size) ** 0.5, rel=1e-4)  # means are float32
    assert round.metrics["adapter_gap"] > 0


def factors_of(round: Round, layer: str) -> list[tuple[float, torch.Tensor, torch.Tensor]]:
    """p_k, B_k and A_k."""
    total = sum(upload.num_samples for upload in round.uploads.values())
    names = [f"{layer}.lora_{factor}.weight" for factor in "BA"]
    return [
        (upload.num_samples / total, *(upload.weights[name].double() for name in names))
        for upload in round.uploads.values()
    ]


LAYER = "encoder.blocks.1.attention.qkv"  # not square, so that a transposed residual fails
MOVING = ("rounds=2", "training.epochs=3", "training.optimizer.lr=0.01")


def test_exact_aggregation_gives_the_mean_of_products_in_every_round(tiny: Tiny):
    federation = open_afresh(tiny("fedavg", LORA, "model.adapters.aggregation=exact", *MOVING))
    for round in play(federation):
        merged = federation.method.encoders(round.server, {})["global"].weights[f"{LAYER}.weight"]
        mean = sum(share * b @ a for share, b, a in factors_of(round, LAYER))
        expected = round.server_before.base[f"{LAYER}.weight"].double() + 6 / 4 * mean
        torch.testing.assert_close(merged.double(), expected, rtol=0, atol=1e-7)  # two roundings to float32
        assert round.metrics["adapter_gap"] > 1e-3


def test_exact_aggregation_sends_factors_to_the_last_rounds_clients_and_layers_to_others(tiny: Tiny):
    config = tiny("fedavg", LORA, "model.adapters.aggregation=exact", "clients.number=3", "rounds=1")
    federation = open_afresh(config)
    (round,) = play(federation)
    two = {client: upload for client, upload in round.uploads.items() if client != 1}
    after = federation.update_server(1, round.server_before, two).state
    again = federation.update_server(2, after, two).state
    layers = 4 * BLOCKS * 12 * WIDTH**2
    stacked = FACTORS * 2  # ranks of two clients
    assert nbytes(federation.method.download(after, 0).residual) == stacked < layers
    assert nbytes(federation.method.download(after, 1).frozen) == FROZEN
    late = federation.update_server(2, after, {2: two[2], 1: round.uploads[1]}).state
    assert federation.method.download(late, 0).residual is None
    assert nbytes(federation.method.download(late, 0).frozen) == layers
    download = federation.method.download(again, 0)
    left, right = (download.residual[f"{LAYER}.lora_{factor}.weight"].double() for factor in "BA")
    updated = (after.base[f"{LAYER}.weight"].double() + 6 / 4 * left @ right).float()
    assert torch.equal(updated, again.base[f"{LAYER}.weight"])  # a client computes what the server holds


def test_factors_larger_than_the_layers_are_sent_as_layers(tiny: Tiny):
    config = tiny("fedavg", LORA, "model.adapters={name: lora, rank: 64, aggregation: exact}", "rounds=1")
    federation = open_afresh(config)
    (round,) = play(federation)
    download = federation.method.download(round.server, 0)
    assert download.residual is None
    assert nbytes(download.frozen) == 4 * BLOCKS * 12 * WIDTH**2


def check_nearest(weights: Weights, product: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Check that B A is the nearest product of a rank; give both."""
    left, right = (weights[f"{LAYER}.lora_{factor}.weight"].double() for factor in "BA")
    u, s, vt = torch.linalg.svd(product)
    nearest = u[:, :rank] @ torch.diag(s[:rank]) @ vt[:rank]
    torch.testing.assert_close(left @ right, nearest, rtol=0, atol=1e-6 * float(s[0]))  # float32 factors
    return left, right


def test_svd_gives_the_nearest_product_of_the_rank_with_one_sign(tiny: Tiny):
    federation = open_afresh(tiny("fedavg", LORA, *SVD, *MOVING))
    round = play(federation)[-1]
    mean = sum(share * b @ a for share, b, a in factors_of(round, LAYER))
    left, right = check_nearest(round.server.inner.weights, mean, RANK)
    torch.testing.assert_close(right @ right.T, torch.eye(RANK, dtype=torch.float64), rtol=0, atol=1e-6)
    assert bool((left.gather(0, left.abs().argmax(0, keepdim=True)) > 0).all())


def test_clients_of_smaller_ranks_have_the_largest_singular_values(tiny: Tiny):
    ranks = ("model.adapters.ranks=[1, 4, 2]", "clients.number=4")
    federation = open_afresh(tiny("fedavg", LORA, *SVD, *ranks, *MOVING))
    first, last = play(federation)
    whole = first.server.inner.weights
    product = whole[f"{LAYER}.lora_B.weight"].double() @ whole[f"{LAYER}.lora_A.weight"].double()
    for client, rank in enumerate((1, 4, 2, 1)):  # cyclically
        size = FACTORS * rank // 4 + PROJECTOR
        assert {("down", "weights"): size, ("up", "weights"): size}.items() <= moved(last, client).items()
        check_nearest(federation.method.download(first.server, client).weights, product, rank)
        trained = federation.config.model.adapters.of_client(client)
        assert (trained.rank, trained.scale) == (rank, 6 / 4)
    mean = sum(share * b @ a for share, b, a in factors_of(last, LAYER))
    check_nearest(last.server.inner.weights, mean, RANK)


def test_a_is_shared_and_b_stays_with_its_client(tiny: Tiny):
    federation = open_afresh(tiny("fedavg", LORA, "method.parts.lora_b=local", *MOVING))
    last = play(federation)[-1]
    for result in last.results.values():
        assert not any("lora_B" in name for name in result.upload.weights)
        assert any("lora_A" in name for name in result.upload.weights)
        assert all("lora_B" in name for name in result.state.kept)
    states = {client: result.state for client, result in last.results.items()}
    shown = federation.method.encoders(last.server, states)
    assert set(shown) == {f"client-{client}" for client in states}
    for client, state in states.items():
        product = state.kept[f"{LAYER}.lora_B.weight"] @ last.server.inner.weights[f"{LAYER}.lora_A.weight"]
        expected = last.server.base[f"{LAYER}.weight"] + 6 / 4 * product
        torch.testing.assert_close(shown[f"client-{client}"].weights[f"{LAYER}.weight"], expected, rtol=1e-5, atol=1e-6)


def test_an_encoder_is_shown_merged_and_starts_another_run(tiny: Tiny, tmp_path: Path):
    config = tiny("fedavg", LORA, "training.optimizer.lr=0.01", "rounds=1")
    run(config, tmp_path / "run")
    export = export_encoder(tmp_path / "run", tmp_path / "encoder.safetensors")
    assert not [name for name in export.weights if "lora_" in name]
    federation = open_afresh(config)
    (round,) = play(federation)
    unmerged = federation.trained_task.model(round.server.base | round.server.inner.weights)
    images = torch.tensor(federation.dataset.test.images[:16])
    plain = load_encoder(tmp_path / "encoder.safetensors")
    with torch.no_grad():
        features = plain(plain.normalize(images))
        expected = unmerged.eval().encoder(federation.task.plain(images))
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)  # one rounding of each weight to float32
    assert (
        features
        - federation.task.model(federation.task.initial_weights()).eval().encoder(federation.task.plain(images))
    ).abs().max() > 1e-2
    again = tiny("fedavg", LORA, f"model.start={tmp_path / 'encoder.safetensors'}", "rounds=1")
    base = open_afresh(again).init_server().base
    assert all(torch.equal(base[f"encoder.{name}"], value) for name, value in export.weights.items())


def test_a_clock_counts_adapters_alone(tiny: Tiny):
    federation = open_afresh(tiny("fedavg", LORA, "clock=even"))
    assert _cost(federation, 0).down == FACTORS + PROJECTOR


def test_a_clock_counts_each_clients_rank(tiny: Tiny):
    federation = open_afresh(
        tiny("fedavg", LORA, *SVD, "model.adapters.ranks=[2, 4]", "clients.number=3", "clock=even")
    )
    assert work_of(federation).down == [FACTORS // 2 + PROJECTOR, FACTORS + PROJECTOR, FACTORS // 2 + PROJECTOR]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("model.adapters=lora",), "batch-norm of encoder cnn"),
        ((LORA, "model.adapters.rank=0"), "model.adapters.rank"),
        ((LORA, "model.adapters.r=8"), "lora has no field 'r'"),
        ((LORA, "clients.models=[vit-micro, vit-micro]"), "model.adapters are of one encoder, got clients.models"),
        ((LORA, "model.adapters.aggregation=exact", "privacy.secure_sum=true"), "exact needs every client's A and B"),
        ((LORA, "model.adapters.aggregation=svd", "robust=median"), "svd needs .* Robust as it is set does not give"),
        (("method=ldawa", LORA, "model.adapters.aggregation=exact"), "exact needs .* LDAWA as it is set"),
        (("method.parts.lora_b=local",), "parts.lora_b=local has no meaning here: there are only encoder, projector"),
        (
            (LORA, "method.parts.lora_b=local", "model.adapters.aggregation=svd"),
            "svd needs .* FedAvg as it is set does not give",
        ),
        (
            (LORA, *SVD, *BYOL),
            "target that is not reset .* got method.parts.target=local: set method.parts.target=reset",
        ),
        ((LORA, "model.adapters.ranks=[2]"), "ranks need aggregation=svd, got mean"),
        ((LORA, *SVD, "model.adapters.ranks=[0]"), r"^model.adapters.ranks.0: input should be greater than 0, got 0$"),
        ((LORA, *SVD, "model.adapters.ranks=[2, 5]"), "none above rank=4, got 5: set rank=5"),
        (
            (LORA, *SVD, "model.adapters.ranks=[2]", "evaluation.diagnostics=1"),
            "compares clients' updates number by number",
        ),
        ((LORA, "model.adapters.aggregation=stack"), "model.adapters.aggregation"),
        ((MODEL.format("loraa"),), "unknown model.adapters 'loraa': did you mean 'lora'"),
        ((MODEL.format("norms"), "model.adapters.rank=4"), "norms has no field 'rank'; it belongs to lora"),
    ],
)
def test_mistaken_settings_are_refused_in_one_line(tiny: Tiny, settings: tuple[str, ...], message: str):
    with pytest.raises((ConfigError, ValueError), match=message):
        Federation.open(tiny("fedavg", *settings))


def test_a_state_holds_what_is_frozen_once(tiny: Tiny):
    *_, last = play(open_afresh(tiny("fedavg", LORA)))
    assert nbytes(last.server.base) == FROZEN
    assert nbytes(last.server.inner.weights) == FACTORS + PROJECTOR

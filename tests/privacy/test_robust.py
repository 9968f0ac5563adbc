"""Rules and hostile clients around a method: what they replace, what is on record, and what is refused."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rayfed_ssl.adversaries.omniscient import MinMax
from rayfed_ssl.aggregation.robust.krum import Krum, MultiKrum
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.contributions import Rebased, Start
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.round_loop import ServerError
from rayfed_ssl.engine.virtual_time import attach_schedule, work_of
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.progress import RunProgress
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.record_plots import rule_plot
from rayfed_ssl.reports.html.report import write_report
from rayfed_ssl.runs import resume, run
from rayfed_ssl.testing.trial import play
from rayfed_ssl.trees import Weights, digest, leaves

Open = Callable[..., Federation]
Tiny = Callable[..., Config]

FIVE = ("clients.number=5",)
FLIP = "adversary={name: sign-flip, clients: [1], scale: 20}"


def test_without_a_rule_and_an_adversary_a_configuration_is_what_it_was(tiny: Tiny) -> None:
    assert not {"robust", "adversary"} & tiny("fedavg").dump().keys()
    assert tiny("fedavg").system == "fedavg"
    assert tiny("fedavg", *FIVE, "robust=median", FLIP).system == "fedavg-median-sign-flip"


def test_the_mean_of_what_a_rule_gives_is_that_whatever_sample_counts_say(open_tiny: Open) -> None:
    """Krum's one upload is the server's next state, bit for bit, but for batch-norm's counters."""
    federation = open_tiny("fedavg", *FIVE, "robust=krum", "method.weighting=samples")
    (first, *_) = play(federation, 1)
    (chosen,) = (client for client in first.uploads if first.metrics[f"robust_weight_{client}"] == 1)
    sent = first.uploads[chosen].weights
    floats = [name for name, value in sent.items() if value.is_floating_point()]
    assert digest({n: first.server.weights[n] for n in floats}) == digest({n: sent[n] for n in floats})
    received = federation.method.download(first.server_before, chosen).weights
    counters = sent.keys() - set(floats)
    assert counters
    assert all(first.server.weights[name].equal(received[name]) for name in counters)
    assert first.metrics[f"robust_distance_{chosen}"] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("name", ["fedavg", "fedca", "fcl", "fedsc", "fedfoa", "fedema", "orchestra"])
def test_a_rule_keeps_a_hostile_client_from_moving_the_server_far(open_tiny: Open, name: str) -> None:
    more = {
        "fcl": ("objective=moco", "objective.queue_size=50"),
        "fedfoa": ("method.base=fedavg",),
        "fedema": ("objective=byol", "objective.hidden=32"),
    }.get(name, ())
    if name == "orchestra":
        with pytest.raises(
            ConfigError, match="a mean of weights, which Orchestra as it is set does not take: take fedavg"
        ):
            open_tiny(name, *FIVE, "robust=median")
        return

    def moved(*settings: str) -> float:
        played = play(open_tiny(name, *FIVE, *more, *settings), 1)[0]
        before, after = (dict(leaves(state)) for state in (played.server_before, played.server))
        names = [path for path in before if "/weights/" in path and path.endswith(".weight")]
        assert names
        return sum(float((after[path] - before[path]).square().sum()) for path in names) ** 0.5

    plain, attacked, defended = moved(), moved(FLIP), moved(FLIP, "robust=median")
    assert attacked > 2 * plain
    assert defended < 0.5 * attacked


@pytest.mark.parametrize(
    "rule",
    ["{name: fltrust}", "{name: eminspector}", "{name: flame, noise: 0.01}", "{name: median, before: bucketing}"],
)
def test_rules_that_look_at_public_data_or_draw_repeat_their_bits(tiny: Tiny, tmp_path: Path, rule: str) -> None:
    public = ("public=fraction:0.2",) if "median" not in rule and "flame" not in rule else ()
    config = tiny("fedavg", *FIVE, f"robust={rule}", FLIP, *public)
    once = run(config, tmp_path / "once").state_sha256
    run(config, tmp_path / "again", until=1)
    assert resume(tmp_path / "again").state_sha256 == once


@pytest.mark.parametrize("adversary", ["alie", "inner-product", "min-max", "mimic", "gaussian", "scaling"])
def test_what_hostile_clients_send_is_another_upload_and_the_honest_are_as_they_were(open_tiny: Open, adversary: str):
    plain = play(open_tiny("fedavg", *FIVE), 1)[0]
    attacked = play(open_tiny("fedavg", *FIVE, f"adversary={{name: {adversary}, clients: 1}}"), 1)[0]
    assert {c: digest(u) for c, u in plain.uploads.items()} == {c: digest(u) for c, u in attacked.uploads.items()}
    assert digest(plain.server) != digest(attacked.server)
    assert all(bool((v >= 0).all()) for n, v in attacked.server.weights.items() if n.endswith("running_var"))
    later = play(open_tiny("fedavg", *FIVE, f"adversary={{name: {adversary}, clients: 1, from_round: 2}}"), 1)[0]
    assert digest(later.server) == digest(plain.server)


def test_the_best_strength_moves_a_rule_s_result_farther_than_the_default(open_tiny: Open) -> None:
    """Away from what honest clients make of it alone."""

    def result(*settings: str) -> Weights:
        first = play(open_tiny("fedavg", *FIVE, "method.weighting=uniform", *settings), 1)[0]
        return {n: v for n, v in first.server.weights.items() if n.endswith("weight")}

    def moved(tau: str) -> float:
        attack = f"adversary={{name: inner-product, clients: 2, tau: {tau}}}"
        attacked = result(attack, "robust={name: trimmed-mean, hostile: 1}")
        first = play(open_tiny("fedavg", *FIVE, "method.weighting=uniform", attack), 1)[0]
        hostile = {int(c) for c in open_tiny("fedavg", *FIVE, attack).method.ids}
        ends = [upload.weights for client, upload in first.uploads.items() if client not in hostile]
        means = {name: sum(end[name] for end in ends) / len(ends) for name in attacked}
        return sum(float((attacked[n] - means[n]).square().sum()) for n in attacked) ** 0.5

    assert moved("best") > 1.02 * moved("2.0")


def test_numbers_that_are_not_finite_are_not_sent(open_tiny: Open) -> None:
    with pytest.raises(
        ServerError, match=r"what Gaussian sends as .* is not finite, .* give the adversary smaller numbers"
    ):
        play(open_tiny("fedavg", *FIVE, "adversary={name: gaussian, clients: 1, std: 2.0e+38}"), 1)


def test_min_max_looks_at_what_all_honest_clients_have(open_tiny: Open) -> None:
    """Dictionaries have as many rows as samples."""
    some = ("clients.number=4", "partition=iid", "data.train_limit=70", "public=fraction:0.1")
    assert play(open_tiny("fedca", *some, "adversary={name: min-max, clients: [0]}"), 1)


def test_foolsgold_remembers_what_clients_train_and_no_target(open_tiny: Open) -> None:
    target = ("objective=byol", "objective.hidden=32", "method.parts.target=averaged")
    assert play(open_tiny("fedavg", *FIVE, *target, "robust={name: foolsgold, hostile: 1}"), 2)


def test_before_the_attack_nobody_is_found(open_tiny: Open) -> None:
    settings = ("robust=krum", "adversary={name: sign-flip, clients: [1], scale: 20, from_round: 2}")
    first, second = play(open_tiny("fedavg", *FIVE, *settings), 2)
    assert "hostile_found" not in first.metrics
    assert first.metrics["honest_lost"] == 4
    assert (second.metrics["hostile_found"], second.metrics["honest_lost"]) == (1, 3)


def test_what_a_client_without_weight_sends_beside_its_weights_is_left_out(open_tiny: Open) -> None:
    settings = ("public=fraction:0.2", "clients.number=6", "robust={name: multi-krum, hostile: 1}", FLIP)
    (first, *_) = play(open_tiny("fedca", *settings), 1)
    assert first.metrics["robust_weight_1"] == 0
    rows = {client: {tuple(row) for row in upload.dictionary.tolist()} for client, upload in first.uploads.items()}
    shared = {tuple(row) for row in first.server.dictionary.tolist()}
    assert {client for client, own in rows.items() if own & shared} == {0, 2, 3, 4, 5}


def test_where_a_rule_weighs_nobody_a_round_changes_nothing(open_tiny: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Krum, "weights", lambda rule, gram: torch.zeros(len(gram), dtype=torch.float64))
    (first, *_) = play(open_tiny("fedsc", *FIVE, "robust=krum"), 1)
    assert first.metrics["honest_lost"] == 5
    assert digest(first.server) == digest(first.server_before)


def test_fedsigreg_looks_along_the_directions_of_the_functions_that_it_has(
    open_tiny: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a round in which a rule weighs nobody."""
    weights, calls = MultiKrum.weights, list[int]()

    def none_in_round_two(rule: MultiKrum, gram: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return weights(rule, gram) * (len(calls) != 2)

    monkeypatch.setattr(MultiKrum, "weights", none_in_round_two)
    first, second, third = play(open_tiny("fedsigreg", *FIVE, "rounds=3", "robust={name: multi-krum, chosen: 2}"), 3)
    assert digest(first.downloads[0]) != digest(second.downloads[0]) == digest(third.downloads[0])


def test_fedca_sends_its_targets_once_to_clients_that_a_rule_leaves_out(open_tiny: Open) -> None:
    rounds = play(open_tiny("fedca", *FIVE, "public=fraction:0.2", "robust=krum"), 2)
    assert all(download.aligned is not None for download in rounds[0].downloads.values())
    assert all(download.aligned is None for download in rounds[1].downloads.values())


@pytest.mark.parametrize("name", ["fedsc", "fedsigreg", "fedfoa"])
def test_samples_that_clients_claim_weigh_nothing_of_theirs(open_tiny: Open, name: str) -> None:
    over = ("method.base=fedsc", "objective={name: spectral, form: fedsc}") if name == "fedfoa" else ()
    rounds = [play(open_tiny(name, *FIVE, *over, *more), 2) for more in ((), ("robust=median",))]
    plain, ruled = (getattr(first.server, "base", first.server).factors for first, _ in rounds)
    assert len(set(plain.values())) > 1
    assert set(ruled.values()) == {1.0}
    if name == "fedsigreg":
        assert rounds[1][1].downloads[0].weight == 4


@pytest.mark.parametrize("name", ["ssl-backdoor, size: 3, target_class: 1", "bad-encoder, size: 3, target_class: 1"])
def test_a_virtual_time_does_not_depend_on_who_is_hostile(open_tiny: Open, name: str) -> None:
    plain, attacked = (
        work_of(open_tiny("fedavg", *FIVE, "clock=even", *adversary))
        for adversary in ((), (f"adversary={{name: {name}, clients: [0]}}",))
    )
    assert attacked == plain


def test_hostile_clients_share_one_strength_for_the_round(open_tiny: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[float] = []

    def strength(adversary: MinMax, *arguments: Any) -> float:
        chosen.append(once(adversary, *arguments))
        return chosen[-1]

    once = MinMax.strength
    monkeypatch.setattr(MinMax, "strength", strength)
    play(open_tiny("fedavg", *FIVE, "adversary={name: min-max, clients: 2}"), 2)
    assert len(chosen) == 2  # rounds
    assert min(chosen) > 0


@pytest.mark.parametrize(("name", "adversary"), [("flesd", "permute"), ("fedmd", "alie"), ("fedca", "permute")])
def test_methods_that_send_no_weights_are_attacked_by_the_kind_of_what_they_send(
    open_tiny: Open, name: str, adversary: str
) -> None:
    plain, attacked = (
        play(open_tiny(name, *FIVE, *more), 1)[0] for more in ((), (f"adversary={{name: {adversary}, clients: [2]}}",))
    )
    assert digest(plain.uploads[2]) == digest(attacked.uploads[2])
    assert digest(plain.server) != digest(attacked.server)


def test_record_and_head_say_who_was_hostile_and_who_was_dropped(tiny: Tiny, tmp_path: Path) -> None:
    config = tiny("fedavg", "clients.number=6", "robust={name: multi-krum, hostile: 1}", FLIP)
    screen = io.StringIO()
    RunProgress(config, console=Console(file=screen, width=200)).introduce(Federation.open(config), tmp_path)
    assert "fedavg-multi-krum-sign-flip on digits" in screen.getvalue()
    assert "  robust: multi-krum, hostile 1" in screen.getvalue()
    assert "note: hostile clients (SignFlip, from round 1): 1" in screen.getvalue()
    record = RunRecord.open(run(config, tmp_path / "run").directory)
    values = {(row["round"], row["name"]): row["value"] for row in record.metrics if row["participant"] == "server"}
    for round in (1, 2):
        assert values[round, "robust_weight_1"] == 0.0
        assert values[round, "robust_weight_0"] == 0.2
        assert (values[round, "hostile_found"], values[round, "honest_lost"]) == (1.0, 0.0)
        distances = {client: values[round, f"robust_distance_{client}"] for client in range(6)}
        assert max(distances, key=lambda client: distances[client]) == 1
    plot = rule_plot(record.metrics, record.manifest.notes)
    assert plot is not None
    assert "Hostile clients (SignFlip, from round 1): 1." in plot.note
    assert plot.table is not None
    assert [line[0] for line in plot.table.texts()] == [str(client) for client in range(6)]
    assert plot.table.texts()[1][1:] == ["0", "0"]
    assert rule_plot([row for row in record.metrics if "robust" not in row["name"]], []) is None
    page = write_report([record.directory], tmp_path / "report.html")
    assert "What the rule makes of each client" in Path(page).read_text()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("robust=krum",), "robust.hostile=1 needs 5 uploads in a round, got 3: raise clients.number"),
        (("robust=median", "privacy.secure_sum=true"), "privacy.secure_sum=true shows sums alone, and robust"),
        (("robust=fltrust",), "looks at public data, and this run has none: set public"),
        (("robust=median", "public=fraction:0.1"), "fedavg uses no public data"),
        (("robust=mediam",), "unknown robust 'mediam': did you mean 'median'"),
        (("robust={name: median, hostil: 1}",), "hostil"),
        (
            ("robust={name: norm-bound, length: 2.0, quantile: 0.3}",),
            "robust.quantile has no meaning beside robust.length",
        ),
        (
            ("method=fedema", "objective=byol", "objective.hidden=32", "model={encoder: cnn-group, adapters: norms}"),
            "encoder cnn-group has none that model.adapters trains",
        ),
        (("robust={name: flame, hostile: 0}", "clients.fraction=0.1"), "needs 2 uploads in a round, got 1"),
        (("adversary={name: alie, tau: bset}",), "adversary.tau: input should be a valid number or 'best', got 'bset'"),
        (("adversary={name: alie, clients: a}",), "should be a valid integer or a list such as [a, b], got 'a'"),
        (("adversary={name: alie, clients: [-1]}",), "adversary.clients.0: input should be greater than or equal to 0"),
        (("adversary={name: alie, clients: 3}",), "adversary.clients=3 leaves none of 3 clients honest"),
        (("adversary={name: alie, clients: [0, 1, 2]}",), "clients=(0, 1, 2) leaves none of 3 clients honest"),
        (("adversary={name: alie, clients: []}",), "adversary.clients names nobody: name a client"),
        (("robust={name: median, before: bucketing}",), "robust.before=bucketing needs 5 uploads in a round, got 3"),
        (
            ("robust={name: multi-krum, hostile: 0, chosen: 4}",),
            "robust.chosen=4 is more than the 3 uploads of a round",
        ),
        (("adversary={name: alie, clients: [7]}",), "names 7, which is no client: choose from 0, 1, 2"),
        (("robust=median", "privacy.clip=1.0"), "privacy.clip counts noise for a mean of clipped uploads, and robust"),
        (
            ("clients.number=6", "robust=krum", "clock=even", "clock.policy={name: fedbuff, buffer: 3}"),
            "needs 5 uploads in a round, got 3",
        ),
        (("robust=median", "clock=even", "clock.policy=fedasync"), "needs 3 uploads in a round, got 1"),
        (
            ("adversary=alie", "clock=even", "clock.policy=fedasync"),
            "ALIE looks at a step's honest uploads, and clock.policy",
        ),
        (
            (
                "model={encoder: vit-micro, adapters: {name: lora, aggregation: svd}}",
                "clock=even",
                "clock.policy=fedbuff",
            ),
            "without exact or svd adapters",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tiny: Tiny, settings: tuple[str, ...], message: str) -> None:
    def begin() -> None:
        federation = Federation.open(tiny("fedavg", *settings))
        federation.check_ready()
        attach_schedule(federation)

    with pytest.raises(ConfigError) as caught:
        begin()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            ("clients.fraction=0.5", "adversary={name: alie, clients: 3}"),
            "more than robust.hostile=1 hostile clients with",
        ),
        (("adversary={name: alie, clients: 2}",), "hostile clients with a probability of 1: the rule"),
        (("adversary={name: alie, clients: 1}",), None),
    ],
)
def test_the_head_says_how_often_a_round_has_more_hostile_clients_than_a_rule_takes(
    open_tiny: Open, settings: tuple[str, ...], said: str | None
) -> None:
    """Of 10 clients with 3 hostile ones, 5 in a round: 1 - P(0) - P(1) = 1/2."""
    notes = open_tiny("fedavg", "clients.number=10", "robust=median", *settings).notes
    found = [note for note in notes if "with a probability of" in note]
    assert [said in note for note in found] == [True] * (said is not None)
    if "0.5" in settings[0]:
        assert "probability of 0.5:" in found[0]


def test_hostile_clients_follow_from_the_seed(tiny: Tiny) -> None:
    def ids(seed: int) -> Any:
        config = tiny("fedavg", "clients.number=8", "adversary={name: alie, clients: 2}", f"seed={seed}")
        return Federation.open(config).method.ids

    drawn = [ids(seed) for seed in range(6)]
    assert drawn == [ids(seed) for seed in range(6)]
    assert len(set(drawn)) > 1
    assert all(len(set(each)) == 2 for each in drawn)


def test_foolsgold_remembers_what_each_client_has_changed_in_all_rounds(tiny: Tiny, open_tiny: Open, tmp_path: Path):
    """Clients 1 and 2 repeat the upload of client 0, so that the three are one; each other client goes its own way."""
    settings = (
        "clients.number=6",
        "robust=foolsgold",
        "adversary={name: mimic, clients: [1, 2]}",
        "clients.fraction=0.9",
    )
    first, second = play(open_tiny("fedavg", *settings), 2)
    sums = second.server.changes
    assert sums.keys() == first.uploads.keys() | second.uploads.keys()
    assert not any("running" in name for name in sums[3])
    both = [client for client in first.uploads if client in second.uploads and client not in (1, 2)]
    for client in both:
        for played in (first, second):
            received = played.server_before.state.weights
            ends = played.uploads[client].weights
            sums[client] = {n: v - (ends[n] - received[n]) for n, v in sums[client].items()}
        assert all(float(value.abs().max()) < 1e-5 for value in sums[client].values())
    assert all(second.metrics[f"robust_weight_{client}"] == 0 for client in second.uploads if client in (1, 2))
    config = tiny("fedavg", *settings)
    once = run(config, tmp_path / "once").state_sha256
    run(config, tmp_path / "again", until=1)
    assert resume(tmp_path / "again").state_sha256 == once


def test_the_weight_of_staleness_multiplies_a_change_before_a_rule_sees_it(open_tiny: Open) -> None:
    """A rule that bounds nothing gives what FedBuff gives without it, w + mean s_k (w_k - w_v)."""
    settings = (*FIVE, "method.weighting=uniform")
    plain, bound = (open_tiny("fedavg", *settings, *more) for more in ((), ("robust={name: norm-bound, length: 1e9}",)))
    first = play(plain, 1)[0]

    def after(federation: Federation, weights: list[float]) -> Weights:
        starts = {client: Start(first.server_before, weight, False) for client, weight in enumerate(weights)}
        uploads = Rebased(first.uploads, starts, first.server, lambda state: state.weights)
        return federation.update_server(2, first.server, uploads).state.weights

    stale = [0.9, 0.5, 0.5, 0.25, 0.8]
    even = after(bound, [0.9] * 5)
    for name, value in after(plain, stale).items():
        if value.is_floating_point():
            torch.testing.assert_close(after(bound, stale)[name], value, rtol=1e-5, atol=1e-7)
    assert not even["encoder.bn1.weight"].equal(after(bound, stale)["encoder.bn1.weight"])


def test_a_run_of_fedbuff_with_a_rule_and_a_hostile_client_resumes_to_its_bits(tiny: Tiny, tmp_path: Path) -> None:
    buffered = ("clients.number=6", "clock.devices=phones", "clock.policy={name: fedbuff, buffer: 3}", "rounds=3")
    config = tiny("fedavg", *buffered, FLIP, "robust=median")
    once = run(config, tmp_path / "once")
    assert "robust_distance_1" in {row["name"] for row in once.record.metrics}
    run(config, tmp_path / "again", until=2)
    assert resume(tmp_path / "again").state_sha256 == once.state_sha256


def test_torch_is_not_drawn_from_by_accident(open_tiny: Open) -> None:
    before = torch.get_rng_state()
    play(open_tiny("fedavg", *FIVE, "robust={name: flame, noise: 0.1}", "adversary={name: gaussian}"), 1)
    assert torch.get_rng_state().equal(before)

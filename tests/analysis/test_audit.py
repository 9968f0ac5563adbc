"""An audit has the same rows whoever computes it, goes on where it was killed, and refuses what it cannot compare."""

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.utils.data import TensorDataset

from actors.audit import in_tasks
from rayfed_ssl import Config, run
from rayfed_ssl.analysis.audit import Attacked, attack_clients, audit, view
from rayfed_ssl.attacks import ATTACKS
from rayfed_ssl.attacks.attack import Attack, Finding, Pictures, Seen, Truth
from rayfed_ssl.attacks.encoder_mi import EncoderMI
from rayfed_ssl.attacks.measures import separation
from rayfed_ssl.attacks.membership import Membership
from rayfed_ssl.attacks.rmia import RMIA
from rayfed_ssl.data.shards import Shard
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.foreign import plugins
from rayfed_ssl.models import Model
from rayfed_ssl.records.audit_rows import PICTURES, TABLE, main_scores, reached, read_audit
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html import write_report
from rayfed_ssl.reports.summary import summarize
from tests.small_recipes import small

QUICK = {"encoder-mi": {"views": 2}, "embedding-norm": {}}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("audited") / "run"
    run(small("fedsimclr", "privacy={held_out: 0.5, canaries: 8}", "clients.number=3"), directory)
    audit(directory, QUICK)
    return directory


@dataclass(frozen=True, kw_only=True)
class Sums(Attack):
    """An attack of a user's own."""

    def target(self, seen: Seen) -> str:
        return "weights"

    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding]:
        yield Finding("sum", float(sum(value.double().sum() for value in seen.sent.values())))


@dataclass(frozen=True, kw_only=True)
class Shows(Sums):
    """An attack of a user's own that reconstructs pictures."""

    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding | Pictures]:  # type: ignore[override]
        yield Finding("sum", 0.25)
        pictures = truth.members.select(torch.arange(3)).batch(torch.arange(3))
        yield Pictures(pictures, 255 - pictures)


def copy(audited: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(audited, tmp_path / "run", ignore=shutil.ignore_patterns(TABLE, PICTURES)))


def test_each_attack_has_rows_of_each_client(audited: Path):
    rows = read_audit(audited)
    assert {(row["attack"], row["client"]) for row in rows} == {(name, k) for name in QUICK for k in (0, 1, 2)}
    assert {row["metric"] for row in rows} == {"auc", "epsilon", "guesses"}  # and tpr from 99 others on
    assert {row["round"] for row in rows} == {2}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_tasks_give_the_table_of_one_process(audited: Path, tmp_path: Path, workers: int):
    directory = copy(audited, tmp_path)
    audit(directory, QUICK, work=in_tasks(workers))
    assert (directory / TABLE).read_bytes() == (audited / TABLE).read_bytes()


def test_a_killed_audit_goes_on_where_it_was(audited: Path, tmp_path: Path):
    directory = copy(audited, tmp_path)

    def killed(jobs: list) -> Iterator[Attacked]:
        yield from attack_clients(jobs[1:2])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        audit(directory, QUICK, work=killed, trust=True)
    assert {row["client"] for row in read_audit(directory)} == {1}
    done = list[int]()
    audit(directory, QUICK, on_client=done.append, trust=True)
    assert done == [0, 2]
    assert (directory / TABLE).read_bytes() == (audited / TABLE).read_bytes()


def test_other_settings_are_another_attack(audited: Path, tmp_path: Path):
    directory = copy(audited, tmp_path)
    audit(directory, {"encoder-mi": {"views": 3}}, clients=[0])
    audit(directory, {"encoder-mi": {"views": 2}}, clients=[0])
    ours = [row for row in read_audit(audited) if row["client"] == 0 and row["attack"] == "encoder-mi"]
    assert read_audit(directory) == ours


def test_an_attack_of_ones_own_is_named_by_module_and_class(audited: Path, tmp_path: Path):
    directory, name = copy(audited, tmp_path), f"{Sums.__module__}:Sums"
    with pytest.raises(ConfigError, match="which would import the module"):
        audit(directory, {name: {}})
    plugins.allow([name])
    rows, _ = audit(directory, {name: {}})
    assert [row["metric"] for row in rows] == ["sum"] * 3


@pytest.mark.parametrize(
    ("attacks", "options", "message"),
    [
        ({"encoder-my": {}}, {}, "unknown attack 'encoder-my': did you mean 'encoder-mi'"),
        ({"encoder-mi": {"view": 2}}, {}, r"attack encoder-mi: unknown key 'view': did you mean 'views'"),
        ({"matched-representation": {}}, {}, "does not fit .*run: the upload has no representations of private"),
        (QUICK, {"clients": [7]}, r"client 7 sent nothing in round 2: those that did are \[0, 1, 2\]"),
        (QUICK, {"round": 9}, "has no round 9: it has rounds 1 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(audited: Path, attacks: dict, options: dict, message: str):
    with pytest.raises(ConfigError, match=message):
        audit(audited, attacks, **options)


def test_a_round_whose_states_are_gone_is_refused(audited: Path, tmp_path: Path):
    directory = copy(audited, tmp_path)
    (directory / "checkpoints" / "round-000001.json").unlink()
    with pytest.raises(CheckpointError, match="round 2 begins from the states after round 1"):
        audit(directory, QUICK)


def test_a_run_without_held_out_samples_is_told_how_to_have_some(tmp_path: Path):
    run(small("fedsimclr", "rounds=1"), tmp_path / "run")
    with pytest.raises(
        ConfigError, match=r"no held-out samples to compare with: run again with privacy\.held_out=0\.2"
    ):
        audit(tmp_path / "run", QUICK)


def test_the_report_and_a_comparison_show_what_attacks_reached(audited: Path, tmp_path: Path):
    directory = copy(audited, tmp_path)
    plugins.allow([name := f"{Shows.__module__}:Shows"])
    audit(directory, QUICK | {name: {}})
    page = write_report([directory], tmp_path / "page.html").read_text()
    assert "Attacks on the uploads of round 2" in page
    assert f"What {name} reconstructs" in page
    (area,) = (r.mean for r in reached(read_audit(directory)) if (r.attack, r.metric) == ("encoder-mi", "auc"))
    assert f"{area:.4g}" in page
    summary = summarize(RunRecord.open(directory))
    assert summary.audit["encoder-mi.auc"] == area
    assert list(main_scores(summary.audit)) == ["encoder-mi.auc", "embedding-norm.auc", f"{name}.sum"]
    for file in (directory / PICTURES).iterdir():
        file.write_text(json.dumps([[[[[1, 300]]]], [[[[1, 2]]]]]))
    with pytest.raises(ConfigError, match=r"is damaged .*: delete it and audit again"):
        write_report([directory], tmp_path / "page.html")


NOISE = TensorDataset(torch.rand(500, 3, 12, 12, generator=torch.Generator().manual_seed(0)), torch.arange(500) % 2)


def train_on_noise(epochs: int, clients: int, *settings: str) -> tuple[Seen, Truth, Federation]:
    """Let client 0 train on pictures of noise, of which coins hold half out."""
    config = Config.load(
        "fedsimclr",
        f"clients.number={clients}",
        *("partition=iid", "privacy.held_out=0.5", "public=null", "engine.executor=local", "training.batch=64"),
        *(f"training.epochs={epochs}", "training.views=fedx-cifar", *settings),
        data=NOISE,
    )
    federation = Federation.open(config)
    download = federation.method.download(federation.init_server(), 0)
    upload = federation.update_client(1, 0, download, None).upload
    return *view(federation, 1, 0, download, upload), federation


@pytest.mark.slow
def test_a_client_that_overfits_two_hundred_pictures_is_found_out():
    seen, truth, _ = train_on_noise(150, 1)
    assert 180 <= len(truth.members) <= 220
    for name in ("encoder-mi", "rmia"):
        area = next(finding for finding in ATTACKS[name]().run(seen, truth) if finding.metric == "auc")
        assert area.value >= 0.9, name


@pytest.mark.slow
def test_a_model_that_saw_neither_half_tells_them_apart_by_chance_alone():
    seen, _, federation = train_on_noise(5, 2)
    _, truth = view(federation, 1, 1, seen.download, seen.upload)  # what the other client has
    covered = 0
    for seed in range(20):
        rows = torch.cat([truth.members.rows, truth.others.rows])
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
        halves = [dataclasses.replace(truth.members, rows=half, labels=None) for half in rows.chunk(2)]
        split = dataclasses.replace(truth, members=halves[0], others=halves[1])
        area = next(iter(ATTACKS["encoder-mi"](views=4).run(seen, split)))
        assert area.low is not None
        assert area.high is not None
        covered += area.low <= 0.5 <= area.high
    assert covered >= 17  # of 20 intervals at 95 %; fewer have a chance of 1.6 %


def test_the_reference_of_rmia_never_saw_a_member_whatever_the_round():
    seen, _, federation = train_on_noise(1, 2)
    trained = dataclasses.replace(seen.download, weights={k: v + v for k, v in seen.received.items()})
    references = []
    for download, round in ((seen.download, 1), (trained, 1), (trained, 2)):
        later = dataclasses.replace(seen, download=download, round=round, memory={})
        references.append(RMIA().reference(later).state_dict())
    first, same, longer = (weights["encoder.conv1.weight"] for weights in references)
    assert torch.equal(first, same), "it begins with the weights of round 1"
    assert not torch.equal(first, longer), "it trains as long as the client has"
    alike = dataclasses.replace(seen, seed=seen.seed + 1, client=1, memory=seen.memory)
    assert torch.equal(RMIA().reference(alike).state_dict()["encoder.conv1.weight"], first)
    assert len(seen.memory) == 1, "it serves all clients"
    assert federation.config.privacy.delta == seen.delta


def test_rmia_does_not_fit_clients_that_send_no_weights_at_first(tmp_path: Path):
    run(small("orchestra", "privacy={held_out: 0.5}", "clients.number=4"), tmp_path / "run")
    with pytest.raises(ConfigError, match="clients of round 1 send no weights, so that no reference can be trained"):
        audit(tmp_path / "run", {"rmia": {}})


@dataclass(frozen=True, kw_only=True)
class Position(Membership):
    """Scores a picture by its place among those that are scored."""

    def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
        return -torch.arange(len(samples), dtype=torch.float32)


def test_pictures_are_scored_in_an_order_that_tells_nothing():
    seen, truth, _ = train_on_noise(1, 2)
    areas = [next(iter(Position().run(dataclasses.replace(seen, seed=seed), truth))).value for seed in range(20)]
    assert abs(sum(areas) / 20 - 0.5) < 0.05


def test_a_bound_is_at_the_delta_of_the_runs_claim():
    seen, truth, _ = train_on_noise(1, 2, "privacy.canaries=60")

    class Knows(Position):
        def scores(self, seen: Seen, model: Model, samples: Shard) -> Tensor:
            member = torch.isin(samples.rows, torch.cat([truth.members.rows, truth.canaries.rows[truth.trained]]))
            return member.float() + torch.rand(len(samples)) / 10

    def bound(attack: Membership, delta: float) -> float:
        answers = attack.run(dataclasses.replace(seen, delta=delta), truth)
        return next(found.value for found in answers if isinstance(found, Finding) and found.metric == "epsilon")

    assert bound(Knows(), 1e-5) == bound(Knows(delta=1e-5), 0.1) > bound(Knows(), 0.01)


BLACK = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)


@pytest.mark.parametrize(
    "answer",
    [
        Finding("sum", float("nan")),
        Finding(1, 0.5),  # type: ignore[arg-type]
        Finding("sum", 0.5, targets=2**40),
        Finding("sum", 0.5, targets=True),
        Finding("sum", 2**60 + 1),
        Finding("sum", 0.5, low=torch.tensor(0.1)),  # type: ignore[arg-type]
        Pictures(BLACK, BLACK[:1]),
        Pictures(BLACK, BLACK.float()),
        Pictures(BLACK, None),  # type: ignore[arg-type]
        "sum",
    ],
)
def test_an_answer_that_no_table_holds_is_refused(audited: Path, answer: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Sums, "run", lambda self, seen, truth: iter([answer]))
    plugins.allow([name := f"{Sums.__module__}:Sums"])
    with pytest.raises(ConfigError, match="must give Findings of a text, a finite value"):
        audit(audited, {name: {}}, clients=[0])


def test_under_secure_sums_every_client_is_attacked_by_the_mean(tmp_path: Path):
    settings = ("privacy={held_out: 0.5, secure_sum: true}", "clients.number=2", "rounds=1")
    run(small("fedsimclr", *settings), tmp_path / "run")
    plugins.allow([name := f"{Sums.__module__}:Sums"])
    rows, _ = audit(tmp_path / "run", {name: {}})
    first, second = (row["value"] for row in rows)
    assert first == second


@pytest.mark.parametrize(("since", "attacked"), [(2, {0, 2}), (3, {0, 1, 2})])
def test_hostile_clients_whose_uploads_are_forged_are_left_out(tmp_path: Path, since: int, attacked: set[int]):
    hostile = f"adversary={{name: sign-flip, clients: [1], from_round: {since}}}"
    run(small("fedsimclr", "privacy={held_out: 0.5}", "clients.number=3", hostile), tmp_path / "run")
    rows, notes = audit(tmp_path / "run", QUICK)
    assert {row["client"] for row in rows} == attacked
    if 1 in attacked:
        return
    assert notes == ["left out, as an adversary sent something in the place of their uploads: 1"]
    with pytest.raises(ConfigError, match="client 1 is hostile: in round 2 its adversary sent something"):
        audit(tmp_path / "run", QUICK, clients=[0, 1])
    with pytest.raises(ConfigError, match="round 2 has no upload to audit: name honest clients, or take another round"):
        audit(tmp_path / "run", QUICK, clients=[])


def test_an_audit_computes_with_the_threads_of_the_run(tmp_path: Path):
    run(small("fcl", "privacy={held_out: 0.5}", "clients.number=2"), tmp_path / "run")
    torch.set_num_threads(2)  # tests have one, as runs do
    try:
        rows, _ = audit(tmp_path / "run", {"embedding-norm": {}})
    finally:
        torch.set_num_threads(1)
    assert len(rows) == 2


def test_scores_of_a_model_that_diverged_tell_nothing():
    area, rate = separation(np.full(40, np.nan), np.full(120, np.inf), 0)
    assert (area.value, area.low, area.high) == (0.5, 0.5, 0.5)
    assert rate.value == 0


@pytest.mark.slow
def test_members_by_chance_are_found_at_no_more_than_the_rate_that_is_named():
    rng = np.random.default_rng(0)
    rates = [separation(rng.random(50), rng.random(100), 0)[1].value for _ in range(100)]
    assert np.mean(rates) < 0.02  # 0.0099 is expected, with a standard error of 0.002
    assert len(separation(rng.random(50), rng.random(98), 0)) == 1


def test_rows_of_a_run_of_somebody_else_are_computed_anew(audited: Path, tmp_path: Path):
    directory, done = Path(shutil.copytree(audited, tmp_path / "run")), list[int]()
    audit(directory, QUICK, on_client=done.append)
    assert done == [0, 1, 2]
    assert (directory / TABLE).read_bytes() == (audited / TABLE).read_bytes()


@dataclass(frozen=True, kw_only=True)
class Broken(Sums):
    """An attack of a user's own with a mistake."""

    how: str

    def run(self, seen: Seen, truth: Truth) -> Iterator[Finding]:
        if self.how == "raises":
            raise KeyError("boom")
        yield Finding("sum", float("nan")) if self.how == "nan" else 0.7  # type: ignore[misc]


@pytest.mark.parametrize(("name", "attack"), [(f"{Sums.__module__}:Sums", Sums), ("encoder-mi", EncoderMI)])
def test_an_attack_that_fails_leaves_the_others(
    audited: Path, tmp_path: Path, name: str, attack: type[Attack], monkeypatch: pytest.MonkeyPatch
):
    def fail(self: Attack, seen: Seen, truth: Truth) -> Iterator[Finding]:
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr(attack, "run", fail)
    plugins.allow([name])
    directory, asked = copy(audited, tmp_path), {name: {}, "embedding-norm": {}}
    with pytest.raises(ConfigError, match=r"attack=.* RuntimeError: mat1 and mat2 shapes cannot be multiplied"):
        audit(directory, asked)
    norms = [row for row in read_audit(audited) if row["attack"] == "embedding-norm"]
    assert read_audit(directory) == norms
    rows, notes = audit(directory, asked, required=False)
    assert (rows, len(notes)) == (norms, 1)


@pytest.mark.parametrize(
    ("how", "message"),
    [("raises", "Broken raised KeyError: 'boom'"), ("nan", "a finite value"), ("number", "twice, got 0.7")],
)
def test_a_mistake_in_an_attack_of_ones_own_is_one_line(audited: Path, tmp_path: Path, how: str, message: str):
    plugins.allow([name := f"{Broken.__module__}:Broken"])
    with pytest.raises(ConfigError, match=message):
        audit(copy(audited, tmp_path), {name: {"how": how}}, clients=[0])

"""Runs that start from a learned encoder, and clients with few labels."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from rayfed_ssl.analysis.diagnosis import diagnose
from rayfed_ssl.analysis.rescoring import measure_encoders
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.engine.federation import Federation, training_seed
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.export.encoders import export_encoder
from rayfed_ssl.records.manifest import StartEntry
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.html.data_plots import open_federation
from rayfed_ssl.reports.html.sources import open_sources
from rayfed_ssl.runs import resume, run
from rayfed_ssl.storage.saved_encoders import read_start
from rayfed_ssl.trees import Weights, digest

Tiny = Callable[..., Config]
Open = Callable[..., Federation]

SUPERVISED = ("objective=supervised", "model.projection_dim=null")


@pytest.fixture(scope="module")
def learned(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished self-supervised run."""
    return run(tiny("fedavg", "rounds=1"), tmp_path_factory.mktemp("learned") / "run").directory


def body(weights: Weights) -> Weights:
    return {name: value for name, value in weights.items() if name.startswith("encoder.")}


def test_a_run_starts_with_the_learned_encoder_and_fresh_heads(open_tiny: Open, learned: Path):
    federation = open_tiny("fedavg", *SUPERVISED, f"model.start={learned}")
    weights, random = federation.task.initial_weights(), open_tiny("fedavg", *SUPERVISED).task.initial_weights()
    trained = federation.method.encoders(federation.init_server(), {})["global"].weights
    assert digest(body(weights)) == digest(body(trained)) == digest(read_start(learned).weights)
    assert digest(body(weights)) != digest(body(random))
    heads = {name for name in weights if not name.startswith("encoder.")}
    assert heads == {"projector.weight", "projector.bias"}
    assert all(torch.equal(weights[name], random[name]) for name in heads)


def test_run_encoder_file_and_exported_encoder_give_one_start(learned: Path, tmp_path: Path):
    exported = tmp_path / "encoder.safetensors"
    export_encoder(learned, exported)
    starts = [read_start(path) for path in (learned, learned / "encoders" / "global.safetensors", exported)]
    assert len({digest(start.weights) for start in starts}) == 1
    assert {start.architecture for start in starts} == {"cnn"}
    assert starts[2].sha256 == hashlib.sha256(exported.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.encoder=alexnet", "holds the encoder cnn, but this run trains alexnet: set model.encoder=cnn"),
        ("data.size=16", r"encoder.conv1.weight is \[32, 1, 3, 3\], this run's is \[32, 1, 4, 4\]; set data.size"),
    ],
)
def test_an_encoder_that_does_not_fit_is_refused(open_tiny: Open, learned: Path, override: str, message: str):
    with pytest.raises(ConfigError, match=message):
        open_tiny("fedavg", *SUPERVISED, f"model.start={learned}", override).check_ready()


def test_a_start_that_is_no_encoder_is_refused(open_tiny: Open, learned: Path, tmp_path: Path):
    states = next((learned / "checkpoints").glob("server-*.safetensors"))
    for start, message in {
        tmp_path / "nowhere": r"there is no encoder at .*nowhere: name a finished run",
        tmp_path: "holds no encoders: name a finished run",
        states: "holds no encoder, but a state of a run: take RUN/encoders/NAME",
    }.items():
        with pytest.raises(ConfigError, match=message):
            open_tiny("fedavg", f"model.start={start}").check_ready()


def test_one_of_several_encoders_has_to_be_named(tiny: Tiny, open_tiny: Open, tmp_path: Path):
    directory = run(tiny("local", "rounds=1"), tmp_path / "run").directory
    with pytest.raises(ConfigError, match=r"holds 3 encoders: name one of them, such as .*client-0\.safetensors"):
        open_tiny("fedavg", f"model.start={directory}").check_ready()
    chosen = open_tiny("fedavg", f"model.start={directory / 'encoders' / 'client-2.safetensors'}")
    assert chosen.task.start is not None


def test_resume_refuses_another_encoder_and_a_finished_run_needs_none(tiny: Tiny, learned: Path, tmp_path: Path):
    start = tmp_path / "encoder.safetensors"
    export_encoder(learned, start)
    config = tiny("fedavg", *SUPERVISED, "rounds=1", f"model.start={start}")
    directory = run(config, tmp_path / "run").directory
    record = RunRecord.open(directory)
    assert record.manifest.start == StartEntry(file=str(start), sha256=hashlib.sha256(start.read_bytes()).hexdigest())
    assert resume(directory).state_sha256 == record.manifest.rounds[-1].state_sha256
    export_encoder(learned, start, with_heads=True)
    with pytest.raises(ConfigError, match=r"model.start=.* changed since this run began"):
        resume(directory)
    start.unlink()
    (measured,) = measure_encoders(directory, ["knn"])
    assert measured.scores["knn"] == RunRecord.open(directory).scores(1)["global"]["knn"]
    assert diagnose(directory).round == 1
    task = open_federation(open_sources([directory]).runs[0]).task
    task.model(read_start(learned).weights)  # an encoder without its heads, which are drawn
    for fails in (
        lambda: resume(directory),
        lambda: run(config, tmp_path / "again"),
        lambda: measure_encoders(directory, ["knn"], initial=True),
        task.initial_weights,
    ):
        with pytest.raises(ConfigError, match="there is no encoder at"):
            fails()
    assert not (tmp_path / "again").exists()


def test_a_relative_start_is_written_down_absolutely(
    tiny: Tiny, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(learned.parent)
    assert tiny("fedavg", f"model.start={learned.name}").dump()["model"]["start"] == str(learned.resolve())


def test_a_labeled_fraction_leaves_each_client_a_part_of_its_shard(open_tiny: Open):
    whole = open_tiny("fedavg", *SUPERVISED)
    few = open_tiny("fedavg", *SUPERVISED, "clients.labeled=0.4")
    other = open_tiny("fedavg", *SUPERVISED, "clients.labeled=0.4", "clients.label_choice=random")
    for client_id, rows in whole.shards.items():
        assert len(few.shards[client_id]) == len(other.shards[client_id]) == int(0.4 * len(rows) + 0.5)
        assert set(few.shards[client_id]) < set(rows)
        assert few.shards[client_id].tolist() != other.shards[client_id].tolist()


def test_fewer_than_two_labels_and_idle_settings_are_refused(tiny: Tiny, open_tiny: Open):
    with pytest.raises(ConfigError, match=r"clients.labeled=0.01 leaves client 0 1 of \d+ samples"):
        open_tiny("fedavg", *SUPERVISED, "clients.labeled=0.01")
    with pytest.raises(ConfigError, match=r"clients.labeled has no meaning for an objective without labels"):
        tiny("fedavg", "clients.labeled=0.5")
    with pytest.raises(ConfigError, match=r"clients.label_choice has no meaning without clients.labeled"):
        tiny("fedavg", *SUPERVISED, "clients.label_choice=random")


def plain_fine_tuning(federation: Federation, start: Path) -> Weights:
    """Fine-tune encoder and classifier on the one client's labeled samples, as a loop over rounds, epochs and batches."""
    config, task = federation.config, federation.task
    rows, data = federation.shards[0], federation.dataset.train
    model = task.model(task.initial_weights() | read_start(start).weights)
    images, labels = torch.tensor(data.images[rows]), torch.tensor(data.labels[rows])
    for number in range(1, config.rounds + 1):
        random = torch.Generator().manual_seed(training_seed(config, number, 0))
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6, fused=True)
        for _ in range(config.epochs):
            for index in torch.randperm(len(rows), generator=random).split(config.training.batch):
                view = task.augment(images[index], task.views.first, random)
                loss = F.cross_entropy(model(view)[1], labels[index])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return dict(model.state_dict())


@pytest.mark.parametrize("rounds", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_federated_fine_tuning_with_one_client_is_plain_fine_tuning(
    tiny: Tiny, learned: Path, tmp_path: Path, rounds: int
):
    settings = ("partition=pooled", f"model.start={learned}", "clients.labeled=0.5", f"rounds={rounds}")
    config = tiny("fedavg", *SUPERVISED, *settings, "training.epochs=2", "training.batch=16")
    result = run(config, tmp_path / "run")
    federation = Federation.open(config)
    assert len(federation.shards[0]) == 75  # 16, 16, 16, 16, 11
    expected = plain_fine_tuning(federation, learned)
    got = result.encoder_weights("global").weights
    assert set(got) == set(expected)
    assert all(torch.equal(torch.as_tensor(got[name]), expected[name]) for name in expected)


def test_the_classifier_that_clients_train_is_scored(tiny: Tiny, learned: Path, tmp_path: Path):
    config = tiny("fedavg", *SUPERVISED, f"model.start={learned}", "evaluation.every=1")
    result = run(config, tmp_path / "run")
    federation = Federation.open(config)
    model = federation.task.model(result.encoder_weights("global").weights).eval()
    test = federation.dataset.test
    with torch.no_grad():
        predicted = model(normalize(torch.tensor(test.images), federation.task.views.first))[1].argmax(1)
    accuracy = float((predicted == torch.tensor(test.labels)).double().mean())
    assert result.scores["global"]["supervised"] == accuracy
    rows = [row for row in RunRecord.open(result.directory).metrics if row["name"] == "supervised"]
    assert [row["round"] for row in rows] == [1, 2]

"""Running a run again: what is equal, what differs first, and why."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata, resources
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rayfed_ssl import resume
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.arithmetic import Arithmetic
from rayfed_ssl.engine.local_executor import LocalExecutor
from rayfed_ssl.engine.round_loop import Observer
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.machine.processor import PORTABLE
from rayfed_ssl.records.manifest import settings_sha256
from rayfed_ssl.records.run_record import RunRecord
from rayfed_ssl.reports.summary import digest_notes
from rayfed_ssl.runs import run
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.encoder_file import read_export
from rayfed_ssl.storage.filesystem import LocalDirectory
from rayfed_ssl.storage.tensor_files import RESTORE
from rayfed_ssl.verification import Verification, verify_recipe, verify_run

Tiny = Callable[..., Config]

PROCESSOR = (
    "another kind of processor, or other variables of its libraries, computes other bits (matrix product), without "
    "engine.cpu=portable: run with it to compare"
)


class Warnings(Observer):
    """Keeps what a run warns of."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def on_warning(self, message: str) -> None:
        self.lines.append(message)


@pytest.fixture(scope="module")
def original(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three rounds of LocalOnly, the first of which has no checkpoint any more."""
    config = tiny("local", "rounds=3", "evaluation.every=1")
    return run(config, tmp_path_factory.mktemp("runs") / "original").directory


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "copy"))


class OnGPU(LocalExecutor):
    """Computes in this process, and says that it is on a GPU with these bits."""

    fingerprint: ClassVar = {"large convolution": "c0ffee", "normal draws": "beef"}

    def arithmetic(self) -> Arithmetic:
        return Arithmetic("cuda:0", self._federation.task.precision, dict(self.fingerprint))


class OnOtherGPU(OnGPU):
    """A GPU with other bits; its fingerprint has an operation that the other has not."""

    fingerprint: ClassVar = OnGPU.fingerprint | {"large convolution": "0", "sum": "0"}


def verified(directory: Path, tmp_path: Path, executor: type[LocalExecutor] = LocalExecutor) -> Verification:
    record = RunRecord.open(directory)
    return verify_run(record, record.config(), tmp_path / "again", Observer(), executor)


def change_manifest(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    manifest = json.loads((directory / "run.json").read_text())
    change(manifest)
    (directory / "run.json").write_text(json.dumps(manifest))


def change_table(file: Path, change: Callable[[list[dict[str, Any]]], object]) -> None:
    table = pq.read_table(file)
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), file)


def test_a_run_gives_the_same_bits_again(original: Path, tmp_path: Path):
    last = RunRecord.open(original).manifest.rounds[-1]
    assert verified(original, tmp_path) == Verification(3, last.state_sha256)


def test_a_changed_digest_is_named_with_its_round(copy: Path, tmp_path: Path):
    change_manifest(copy, lambda manifest: manifest["rounds"][1].update(state_sha256="0" * 64))
    result = verified(copy, tmp_path)
    assert (result.rounds, result.reason) == (2, None)
    (line,) = result.differences
    assert line.startswith("round 2 is the first that differs: 0000000000000000 on record, ")
    assert line.endswith(" here; its checkpoint has the digest that was computed here, so run.json was changed")


def test_a_changed_state_is_named_with_its_client(copy: Path, tmp_path: Path):
    states = LocalDirectory(copy / "checkpoints")
    state = checkpoints.latest(states, 2)
    stored = checkpoints.store(checkpoints.read(state.clients[2], states), states, "client-1-000002")
    clients = {**state.clients, 1: stored}
    forged = checkpoints.RunState(2, state.server, clients)
    text = checkpoints.MANIFEST.dump_json(checkpoints.Manifest(forged, forged.sha256))
    (copy / "checkpoints" / checkpoints.manifest_name(2)).write_bytes(text)
    change_manifest(copy, lambda manifest: manifest["rounds"][1].update(state_sha256=forged.sha256))
    (line,) = verified(copy, tmp_path).differences
    assert line.endswith("; the state of client 1 is the first that differs")


def test_without_a_checkpoint_a_client_is_named_by_its_metrics(copy: Path, tmp_path: Path):
    def change(rows: list[dict[str, Any]]) -> None:
        next(row for row in rows if (row["round"], row["participant"]) == (1, "client-2"))["value"] += 1e-9

    change_table(copy / "metrics.parquet", change)
    change_manifest(copy, lambda manifest: manifest["rounds"][0].update(state_sha256="1" * 64))
    (line,) = verified(copy, tmp_path).differences
    assert line.startswith("round 1 is the first that differs")
    assert line.endswith("; client 2 is the first whose loss_first differs")


def test_scores_bytes_and_encoders_are_compared_too(copy: Path, tmp_path: Path):
    def raise_score(rows: list[dict[str, Any]]) -> None:
        row = next(row for row in rows if (row["round"], row["name"]) == (3, "linear"))
        row["value"] = 0.875

    change_table(copy / "metrics.parquet", raise_score)
    change_table(copy / "ledger.parquet", lambda rows: rows[0].update(bytes=1))
    shutil.copy(copy / "encoders" / "client-1.safetensors", copy / "encoders" / "client-0.safetensors")
    shutil.copy(copy / "encoders" / "client-1.safetensors", copy / "encoders" / "client-9.safetensors")
    export = read_export(described := copy / "encoders" / "client-1.safetensors")
    described.write_bytes(b"".join(replace(export, info=replace(export.info, mean=(0.5,))).chunks()))
    change_manifest(copy, lambda manifest: manifest.update(starts={}))
    change_manifest(copy, lambda manifest: manifest["rounds"][1].update(cohort=[0]))
    change_manifest(copy, lambda manifest: manifest["encoders"].update({"client-2": "0" * 64}))
    change_manifest(copy, lambda manifest: manifest["fingerprint"].update({"Adam": "0" * 16}))
    kept = min(checkpoints.manifests(copy / "checkpoints"))
    state = copy / "checkpoints" / checkpoints.latest(copy / "checkpoints", kept).clients[1].file
    state.write_bytes(state.read_bytes()[:-1] + bytes([state.read_bytes()[-1] ^ 1]))
    score, *others = (result := verified(copy, tmp_path)).differences
    assert result.reason is None  # a processor explains other states alone
    assert score.startswith("metrics.parquet: linear of client-0 in round 3 is 0.875 on record and ")
    assert others == [
        "ledger.parquet differs",
        "run.json: starts differs",
        "run.json: the cohort of round 2 differs",
        *(
            f"encoders/client-{number}.safetensors is missing, damaged or differs, or its digest in run.json does"
            for number in (0, 1, 2, 9)
        ),
        f"{state} does not match the digest in its manifest: {RESTORE}",
    ]


@pytest.mark.parametrize(
    "words",
    ["evaluation.every=1", "evaluation.every=1 evaluation.probe=every", "evaluation.every=0 evaluation.diagnostics=2"],
)
def test_a_run_that_was_extended_gives_the_same_bits_and_scores_again(words: str, tiny: Tiny, tmp_path: Path):
    probe = ("evaluation.protocols=linear-flesd", "evaluation.settings.linear-flesd.epochs=2")
    run(tiny("local", *probe, *words.split()), tmp_path / "run")
    resume(tmp_path / "run", "rounds=3", executor=LocalExecutor)
    assert verified(tmp_path / "run", tmp_path).differences == ()

    def raise_score(rows: list[dict[str, Any]]) -> None:
        next(row for row in rows if (row["round"], row["name"]) == (2, "linear-flesd"))["value"] = 0.875

    change_table(tmp_path / "run" / "metrics.parquet", raise_score)
    (line,) = verified(tmp_path / "run", tmp_path / "more").differences
    assert line.startswith("metrics.parquet: linear-flesd of client-0 in round 2 is 0.875 on record and ")


def test_a_run_that_was_resumed_with_other_scoring_says_so(tiny: Tiny, tmp_path: Path):
    own = ("clients.test_fraction=0.2", "evaluation.tuning_epochs=1")  # left out of a configuration where it is null
    run(tiny("local", "rounds=4", "evaluation.every=1", *own), tmp_path / "run", until=2)
    observer, changed = Warnings(), ("evaluation.every=0", "evaluation.tuning_epochs=null")
    resume(tmp_path / "run", *changed, observer=observer, executor=LocalExecutor)
    message = "rounds after 2 are scored with another evaluation.every, evaluation.tuning_epochs than config.yaml has"
    assert message in observer.lines
    result = verified(tmp_path / "run", tmp_path)
    assert all(" in round 3 is nothing on record and " in line for line in result.differences)
    assert result.differences
    assert result.reason == message


def test_scores_that_a_run_did_not_have_are_computed(copy: Path, tmp_path: Path):
    def add(rows: list[dict[str, Any]]) -> None:
        rows.append(rows[0] | {"round": 1, "participant": "client-0", "name": "linear", "value": 0.99})

    change_table(copy / "metrics.parquet", add)
    line, *others = verified(copy, tmp_path).differences
    assert line.startswith("metrics.parquet: linear of client-0 in round 1 is 0.99 on record and 0.")
    assert others
    assert all(" in round 1 is nothing on record and " in other for other in others)


def test_scores_that_a_record_lacks_are_named(copy: Path, tmp_path: Path):
    def rename(rows: list[dict[str, Any]]) -> None:
        next(row for row in rows if (row["round"], row["name"]) == (1, "knn"))["name"] = "other"

    change_table(copy / "metrics.parquet", rename)
    lacking, unknown = verified(copy, tmp_path).differences
    assert lacking.startswith("metrics.parquet: knn of client-0 in round 1 is nothing on record and ")
    assert unknown.startswith("metrics.parquet: other of client-0 in round 1 is ")


def test_another_processor_is_given_as_the_reason(copy: Path, tmp_path: Path):
    def change(manifest: dict[str, Any]) -> None:
        manifest["fingerprint"]["matrix product"] = "0" * 16
        manifest["rounds"][0]["state_sha256"] = "0" * 64

    change_manifest(copy, change)
    assert verified(copy, tmp_path).reason == PROCESSOR


def test_a_run_that_cannot_be_repeated_is_refused(copy: Path, tmp_path: Path):
    dropped = {"client": 1, "reason": "its step failed", "quarantined": False}
    change_manifest(copy, lambda manifest: manifest["rounds"][0]["dropped"].append(dropped))
    with pytest.raises(
        ConfigError, match=r"cannot be repeated: 1 client steps failed or .*, such as client 1 in round 1$"
    ):
        verified(copy, tmp_path)
    change_manifest(copy, lambda manifest: manifest.update(rounds=[], finished=None))
    with pytest.raises(ConfigError, match=r"has no finished round to compare: resume it first$"):
        verified(copy, tmp_path)


def test_published_digests_are_of_recipes_as_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    published = json.loads(resources.files("rayfed_ssl.recipes").joinpath("digests.json").read_text())
    assert "digits" in published["recipes"]
    for name, entry in published["recipes"].items():
        config = Config.load(name, "engine.cpu=portable")
        assert entry["settings_sha256"] == settings_sha256(config), (
            f"run {name} with engine.cpu=portable and copy its digests"
        )
        assert len(entry["rounds"]) == config.rounds
    with pytest.raises(ConfigError, match=r"^no digests of fedmae are published: verify one of digits, "):
        verify_recipe("fedmae", tmp_path, Observer(), LocalExecutor)


@pytest.mark.slow
def test_the_command_says_whether_a_recipe_has_its_published_digests(tmp_path: Path):
    from tests.machine.test_processor import start

    if torch.__version__.partition("+")[0] != "2.15.0":
        pytest.skip("the digests are those of torch 2.15.0")
    done = start("rayfed-ssl", "verify", "fedema", environment=PORTABLE)
    assert (done.returncode, done.stdout.split(",")[0]) == (0, "equal: 5 rounds")


def test_comparing_runs_says_whether_bits_are_equal_and_why_not(original: Path, copy: Path):
    digest = RunRecord.open(original).manifest.rounds[-1].state_sha256[:16]
    assert digest_notes([RunRecord.open(original), RunRecord.open(copy)]) == [
        f"original and copy have equal states, state_sha256 {digest}"
    ]
    differ = f"original and copy have equal settings and different digests, {digest} and {'0' * 16}: "
    change_manifest(copy, lambda manifest: manifest["rounds"][-1].update(state_sha256="0" * 64))
    reasons: list[tuple[Callable[[dict[str, Any]], object], str]] = [
        (lambda manifest: None, "nothing on record says why: see `rayfed-ssl verify`"),
        (lambda manifest: manifest["fingerprint"].update({"matrix product": "0" * 16}), PROCESSOR),
        (
            lambda manifest: manifest["versions"].update(torch="2.11.0"),
            f"other versions: torch {metadata.version('torch')} and 2.11.0",
        ),
        (
            lambda manifest: manifest["bits"].update(precision="bf16", threads="2"),
            "engine.precision=fp32, engine.threads=1 and engine.precision=bf16, engine.threads=2",
        ),
    ]
    for change, reason in reasons:
        change_manifest(copy, change)
        assert digest_notes([RunRecord.open(original), RunRecord.open(copy)]) == [differ + reason]


def test_resuming_where_other_bits_are_computed_warns_and_is_recorded(original: Path, copy: Path):
    change_manifest(copy, lambda manifest: manifest["fingerprint"].update({"convolution": "0" * 16}))
    change_manifest(copy, lambda manifest: manifest["versions"].update(torch="2.11.0"))
    observer = Warnings()
    resume(copy, round=2, observer=observer)
    lines = [line for line in observer.lines if "the run goes on" in line]
    assert lines[0].startswith(
        "another kind of processor, or other variables of its libraries, computes other bits (conv"
    )
    assert lines[1].startswith(f"this run began with other versions: torch 2.11.0 and {metadata.version('torch')}; ")
    recorded = RunRecord.open(copy).manifest.warnings
    assert lines == [warning.message for warning in recorded if warning.kind == "bits"]
    change_manifest(copy, lambda manifest: manifest["rounds"][-1].update(state_sha256="0" * 64))
    began = json.loads((original / "run.json").read_text())
    change_manifest(
        copy, lambda manifest: manifest.update(fingerprint=began["fingerprint"], versions=began["versions"])
    )
    (note,) = digest_notes([RunRecord.open(original), RunRecord.open(copy)])
    assert note.endswith(": a run was resumed on another processor or GPU, or with other versions")


@pytest.fixture(scope="module")
def on_h100(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("h100") / "run"
    run(tiny("local"), directory, executor=OnGPU)
    change_manifest(directory, lambda manifest: manifest["hardware"].update(gpus=["NVIDIA H100 80GB HBM3"]))
    return directory


def test_a_record_says_how_clients_compute_not_how_the_driver_does(on_h100: Path):
    manifest = RunRecord.open(on_h100).manifest
    assert (manifest.precision.device, manifest.bits["device"]) == ("cuda:0", "cuda")
    assert manifest.fingerprint == OnGPU.fingerprint
    with pytest.raises(ConfigError, match=r"began with engine\.device=cuda, got engine\.device=cpu, which gives other"):
        resume(on_h100, round=1, executor=LocalExecutor)


def test_gpus_of_one_fingerprint_compare_whatever_they_are_called(on_h100: Path, tmp_path: Path):
    copy = Path(shutil.copytree(on_h100, tmp_path / "h200"))
    change_manifest(copy, lambda manifest: manifest["hardware"].update(gpus=["NVIDIA H200"]))
    change_manifest(copy, lambda manifest: manifest["fingerprint"].pop("normal draws"))  # as of a build without it
    observer = Warnings()
    resume(copy, round=1, observer=observer, executor=OnGPU)
    assert not any("other bits" in line for line in observer.lines)
    assert RunRecord.open(copy).manifest.rounds == RunRecord.open(on_h100).manifest.rounds
    assert verified(copy, tmp_path, OnGPU).differences == ()
    (note,) = digest_notes([RunRecord.open(on_h100), RunRecord.open(copy)])
    assert note.startswith("run and h200 have equal states, state_sha256 ")


def test_gpus_of_other_fingerprints_are_named_by_what_differs(on_h100: Path, tmp_path: Path):
    copy = Path(shutil.copytree(on_h100, tmp_path / "copy"))
    why = "another kind of GPU, or other libraries of it, computes other bits (large convolution): see docs/gpu.md"
    observer = Warnings()
    resume(copy, round=1, observer=observer, executor=OnOtherGPU)
    lines = [warning.message for warning in RunRecord.open(copy).manifest.warnings if warning.kind == "bits"]
    assert lines == [f"{why}; the run goes on, and its digests compare with no other run's"]
    assert set(lines) <= set(observer.lines)
    change_manifest(copy, lambda manifest: manifest["rounds"][1].update(state_sha256="0" * 64))
    assert verified(copy, tmp_path, OnOtherGPU).reason == why
    change_manifest(copy, lambda manifest: manifest.update(fingerprint=OnOtherGPU.fingerprint))
    (note,) = digest_notes([RunRecord.open(on_h100), RunRecord.open(copy)])
    assert note.endswith(f": {why}")
    by_time = Path(shutil.copytree(on_h100, tmp_path / "by-time"))
    for directory in (by_time, copy):
        change_manifest(directory, lambda manifest: manifest["bits"].update(deterministic="false"))
    (note,) = digest_notes([RunRecord.open(by_time), RunRecord.open(copy)])
    assert note.endswith(": engine.deterministic=false takes kernels that may be others each time")

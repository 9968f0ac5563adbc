"""Files of somebody else, changed at random: each is read, or refused in lines, without harm and at a bounded cost."""

import json
import os
import resource
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rayfed_ssl.errors import CheckpointError, ConfigError
from rayfed_ssl.foreign import plugins
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.encoder_file import read_export
from rayfed_ssl.storage.tensor_files import read_path
from rayfed_ssl.trees import digest
from tests.conftest import TinyConfig
from tests.data.pictures import png
from tests.fuzz.mutations import mutate_bytes, mutate_json, mutate_parquet, mutate_safetensors
from tests.tune.conftest import Cli
from tests.tune.conftest import cli as _cli
from tests.tune.studies import swept
from tune.studies.results.summary import write_results

Mutation = Callable[[bytes, Random], bytes]

STATES = "evaluate run;diagnose run;replay run --round 2 --client 0;resume run -q;report run"
ENCODER = "export run out.safetensors;report run;evaluate run/encoders/global.safetensors --protocol knn"
RUN = f"compare run;evaluate run --protocol knn;verify run -q;{STATES};{ENCODER}"
SWEEP = "sweep --status sweep;report sweep"
DATA = "partition recipe.yaml data.name="

KINDS: dict[str, tuple[str, str, Mutation]] = {
    "configuration": ("run/config.yaml", RUN, mutate_json),
    "record": ("run/run.json", RUN, mutate_json),
    "metrics": ("run/metrics.parquet", RUN, mutate_parquet),
    "ledger": ("run/ledger.parquet", RUN, mutate_parquet),
    "evaluations": ("run/evaluations.parquet", "report run;evaluate run --protocol knn", mutate_parquet),
    "diagnostics": ("run/diagnostics.json", "report run;diagnose run", mutate_json),
    "manifest": ("run/checkpoints/round-000002.json", STATES, mutate_json),
    "state": ("run/checkpoints/server-000002.safetensors", STATES, mutate_safetensors),
    "encoder": ("run/encoders/global.safetensors", ENCODER, mutate_safetensors),
    "exported encoder": (
        "encoder.safetensors",
        "evaluate encoder.safetensors data.name=digits --protocol knn;partition recipe.yaml model.start=encoder.safetensors",
        mutate_safetensors,
    ),
    "sweep": ("sweep/study.json", SWEEP, mutate_json),
    "sweep's results": ("sweep/results.json", SWEEP + ";sweep --resume sweep -q", mutate_json),
    "recipe": ("recipe.yaml", "partition recipe.yaml", mutate_json),
    "sweep's definition": ("sweep.yaml", "sweep --dry-run sweep.yaml", mutate_json),
    "benchmark": ("benchmark.yaml", "benchmark benchmark.yaml --system none", mutate_json),
    "reproduction": ("reproduction.yaml", "reproduce reproduction.yaml --dry-run", mutate_json),
    "split in JSON": ("split.json", "partition recipe.yaml partition.path=split.json", mutate_json),
    "split in Parquet": ("split.parquet", "partition recipe.yaml partition.path=split.parquet", mutate_parquet),
    "data": ("data/train.parquet", DATA + "parquet data.path=data", mutate_parquet),
    "picture": ("folder/a/0.png", DATA + "folder data.path=folder", mutate_bytes),
}
NAMED_BY_USER = ("recipe", "sweep's definition", "benchmark", "reproduction")
"""What a user names for new runs may name code: docs/trust.md."""

OWN = ("/tmp/rayfed-ssl-verify-", "/tmp/torchinductor_")  # the second: torch, once it is imported

counts: Counter[str] = Counter()


class Watch:
    """Notes what is opened for writing, removed or started outside of some directories while it is on."""

    def __init__(self) -> None:
        self.inside: tuple[str, ...] = ()
        self.seen: list[str] = []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.inside:
            return
        if event == "open":
            writes = arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            paths = arguments[:1] if writes else ()
        elif event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.symlink", "os.link", "os.truncate"):
            paths = arguments[: 2 if event in ("os.rename", "os.link") else 1]
        else:
            paths = ("started",) if event in ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen") else ()
        for path in paths:
            if not isinstance(path, int) and not os.path.realpath(os.fsdecode(path)).startswith(self.inside):
                self.seen.append(f"{event} {arguments}")


watch = Watch()
cli = _cli


@pytest.fixture(scope="session")
def corpus(tiny: TinyConfig, cli: Cli, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One small file of each kind, in a directory that commands are called in."""
    base = tmp_path_factory.mktemp("fuzz") / "corpus"
    base.mkdir()
    recipe = tiny("fedavg", "data.train_limit=60", "data.test_limit=30", "clients.number=2", "partition=iid").dump()
    (base / "recipe.yaml").write_text(json.dumps(recipe))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(base)
        for asked in ("run recipe.yaml --out run -q", "evaluate run --protocol knn", "diagnose run"):
            assert cli(*asked.split()).exit_code == 0
        assert cli("export", "run", "encoder.safetensors").exit_code == 0
        grid = {"title": "Rounds", "space": {"rounds": [1, 2]}, "seeds": 1, "table": {"rows": "rounds"}}
        directory = swept.begin(base, grid, "sweep")
        swept.go_on(directory)
        write_results(directory)
        assert cli("report", "sweep").exit_code == 0  # what it imports and caches first is not counted
    root = Path(__file__).parents[2]
    shutil.copy(root / "tune/studies/shipped/benchmarks/cifar10.yaml", base / "benchmark.yaml")
    shutil.copy(root / "tune/studies/shipped/reproductions/fedca-figure3.yaml", base / "reproduction.yaml")
    for file in (*base.glob("*.yaml"), base / "run" / "config.yaml"):  # JSON is YAML
        file.write_text(json.dumps(yaml.safe_load(file.read_text())))
    (base / "split.json").write_text(json.dumps([list(range(30)), list(range(30, 60))]))
    pq.write_table(pa.table({"client": ["a", "b"] * 30, "index": range(60)}), base / "split.parquet")
    diagnosis = json.loads((base / "run/diagnostics.json").read_text())
    matrix = {"title": "CKA", "unit": "", "range": [0.0, 1.0], "encoders": ["a", "b"], "clients": [0, 1]}
    diagnosis["matrices"]["cka"] = {**matrix, "values": [[1.0, 0.5], [0.5, 1.0]]}
    (base / "run/diagnostics.json").write_text(json.dumps(diagnosis))
    rng = np.random.default_rng(0)
    pictures = [png(rng.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(20)]
    for folder in ("data", "folder/a", "folder/b"):
        (base / folder).mkdir(parents=True)
    images = pa.array([{"bytes": picture, "path": None} for picture in pictures])
    pq.write_table(pa.table({"img": images, "label": [0, 1] * 10}), base / "data" / "train.parquet")
    for number, picture in enumerate(pictures):
        (base / "folder" / "ab"[number % 2] / f"{number // 2}.png").write_bytes(picture)
    (base / "evil_module.py").write_text("open('executed', 'w')\n\ndef Thing(labels, channels): ...\n")
    yield base
    print(*(f"{name}: {number}" for name, number in sorted(counts.items())), sep="\n")


def sign_anew(place: Path, file: str) -> None:
    """Write the digests of a changed tree where they are looked for, as its author would."""
    is_encoder = file.startswith("run/encoders/")
    record = place / ("run/run.json" if is_encoder else "run/checkpoints/round-000002.json")
    content = json.loads(record.read_text())
    try:
        if is_encoder:
            content["encoders"]["global"] = digest(read_export(place / file).encoder)
        else:
            content["state"]["server"]["sha256"] = digest(read_path(place / file))
            content["state_sha256"] = checkpoints.MANIFEST.validate_python(content, strict=False).state.sha256
    except (CheckpointError, ConfigError):
        return
    record.write_text(json.dumps(content))


def check(kind: str, corpus: Path, cli: Cli, rng: Random) -> None:
    """Change the file of a kind, call a command that reads it, and look at all that it did."""
    file, commands, mutate = KINDS[kind]
    place = corpus.parent / "changed"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(corpus, place)
    content = (corpus / file).read_bytes()
    (place / file).write_bytes(rng.choice((mutate, mutate, mutate_bytes))(content, rng))
    if file.startswith("run/") and file.endswith(".safetensors"):
        sign_anew(place, file)
    words = rng.choice(commands.split(";")).split()
    if "partition.path" in words[-1]:
        words += ["partition.name=file", "data.train_limit=null"]
    cache = str(Path(os.environ["XDG_CACHE_HOME"]).resolve())
    os.chdir(place)
    plugins._allowed.clear()
    sys.modules.pop("evil_module", None)
    before, began = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
    watch.inside = str(place.resolve()), cache, os.environ["XDG_STATE_HOME"], "/dev/null", *OWN
    try:
        result = cli(*words)
    finally:
        watch.inside = ()
        seen, watch.seen = watch.seen, []
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss
    said = f"{' '.join(words)} ({kind}): {result.output[-2000:]}"
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(said) from result.exception
    assert result.exit_code in (0, 2) or (words[0] == "verify" and "different: " in result.stdout), said
    lines = [line for line in result.stderr.splitlines() if not line.startswith("warning: ")]
    assert all(line.startswith("error: ") for line in lines), said
    assert len(lines) == (result.exit_code == 2) or len(lines) > 1, said
    assert not seen, (said, seen)
    assert not (place / "executed").exists() or kind in NAMED_BY_USER, said
    assert time.process_time() - began < (5 if result.exit_code else 40), said  # a report draws
    assert grown < 1 << 20, said  # kiB
    counts[f"{kind} {'refused' if result.exit_code else 'accepted'}"] += 1


@pytest.mark.parametrize("examples", [1, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_read_or_refused(
    kind: str,
    examples: int,
    corpus: Path,
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(corpus)
    monkeypatch.setattr(plugins, "_allowed", set())

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.integers(0, 2**32))
    def each(seed: int) -> None:
        check(kind, corpus, cli, Random(seed))

    each()

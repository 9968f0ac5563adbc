"""States in a bucket: a server in this process that speaks S3's protocol, and the errors that clouds give."""

import http.client
import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from moto.server import ThreadedMotoServer
from pyarrow import ArrowInvalid

from rayfed_ssl import Config, ConfigError, replay, resume, run
from rayfed_ssl.export.encoders import export_encoder
from rayfed_ssl.storage import checkpoints
from rayfed_ssl.storage.addresses import open_backend
from rayfed_ssl.storage.checkpoints import CheckpointError, RunState
from rayfed_ssl.storage.cloud import Bucket
from rayfed_ssl.trees import digest
from tests.stopping import Stop, StopAt
from tests.test_runs import facts

Tiny = Callable[..., Config]


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    """An S3 of our own, with one bucket; gives what addresses say of it."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        connection = http.client.HTTPConnection(host, port)
        connection.request("PUT", "/bucket")
        assert connection.getresponse().status == 200
        connection.close()
        yield f"?region=us-east-1&scheme=http&endpoint_override={host}:{port}"
        server.stop()


@pytest.fixture
def backend(endpoint: str, request: pytest.FixtureRequest) -> Bucket:
    """An empty prefix."""
    found = open_backend(f"s3://bucket/{request.node.name}{endpoint}")
    assert isinstance(found, Bucket)
    return found


def test_what_goes_in_comes_out(backend: Bucket):
    tree = {"w": torch.randn(1000, 30), "steps": 3, "no rows": torch.empty(0, 2)}
    stored = checkpoints.store(tree, backend, "server-000000")
    assert digest(checkpoints.read(stored, backend)) == digest(tree) == stored.sha256


def test_damage_and_absence_are_noticed(backend: Bucket):
    stored = checkpoints.store({"w": torch.ones(100)}, backend, "state")
    content = backend.read(stored.file)
    backend.write(stored.file, [content[:-4], b"\0\0\0\0"])
    with pytest.raises(CheckpointError, match="does not match the digest in its manifest"):
        checkpoints.read(stored, backend)
    backend.write(stored.file, [content[:-4]])
    with pytest.raises(CheckpointError, match=r"state\.safetensors is damaged"):
        checkpoints.read(stored, backend)
    backend.delete([stored.file])
    with pytest.raises(CheckpointError, match=r"s3://bucket/.*/state\.safetensors is missing: restore it from a copy"):
        checkpoints.read(stored, backend)


def test_two_rounds_stay_and_what_they_refer_to(backend: Bucket):
    for round in range(4):
        clients = {7: checkpoints.store({"w": torch.ones(3)}, backend, "client-000007-000000")}
        server = checkpoints.store({"round": torch.tensor(round)}, backend, f"server-{round:06d}")
        checkpoints.commit(RunState(round, server, clients), backend)
    assert sorted(backend.names()) == [
        "client-000007-000000.safetensors",
        "round-000002.json",
        "round-000003.json",
        "server-000002.safetensors",
        "server-000003.safetensors",
    ]
    assert checkpoints.latest(backend).clients == clients
    checkpoints.discard_after(backend, 2)
    assert checkpoints.latest(backend).round == 2


@pytest.mark.slow
def test_a_run_whose_states_are_in_a_bucket_is_stopped_resumed_replayed_and_exported(
    tiny: Tiny, tmp_path: Path, endpoint: str
):
    elsewhere = tiny("local", f"engine.checkpoints=s3://bucket/runs{endpoint}")
    for config, name in ((tiny("local"), "here"), (elsewhere, "there")):
        with pytest.raises(Stop):
            run(config, tmp_path / name, observer=StopAt("on_client", 2))
    exported = [
        export_encoder(tmp_path / name, tmp_path / f"{name}.safetensors", encoder="client-1")
        for name in ("here", "there")
    ]
    assert digest(exported[0].weights) == digest(exported[1].weights)
    here, there = resume(tmp_path / "here"), resume(tmp_path / "there")
    assert facts(there.directory) == facts(here.directory)
    assert [path.name for path in (there.directory / "checkpoints").iterdir()] == ["lock"]
    assert isinstance(there.record.checkpoints, Bucket)
    assert digest(replay(there.directory, 2, 1).state) == digest(replay(here.directory, 2, 1).state)


def test_a_bucket_that_is_not_there_is_refused_before_the_run_begins(tiny: Tiny, tmp_path: Path, endpoint: str):
    with pytest.raises(ConfigError, match=r"cannot be written to s3://other/x/run-.* \(.*NO_SUCH_BUCKET") as caught:
        run(tiny("fedavg", f"engine.checkpoints=s3://other/x{endpoint}"), tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", [OSError, ArrowInvalid])
def test_a_cloud_clients_message_becomes_one_line_with_the_address(kind: type[Exception]):
    backend = open_backend("s3://bucket/prefix?region=us-east-1")
    assert isinstance(backend, Bucket)
    with pytest.raises(OSError, match="ACCESS_DENIED") as caught, backend.explained("state"):
        raise kind("AWS Error ACCESS_DENIED during PutObject operation: Access Denied\nDetail: more")
    assert "\n" not in str(caught.value)
    assert caught.value.filename == "s3://bucket/prefix/state"


def test_an_upload_that_a_signal_interrupts_is_completed(tmp_path: Path):
    class EndedError(Exception):
        pass

    def end(*_: object) -> None:
        raise EndedError

    def content() -> Iterator[bytes]:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.2)
        yield b"whole"

    backend = Bucket(f"file://{tmp_path}")
    before = signal.signal(signal.SIGTERM, end)
    try:
        with pytest.raises(EndedError):
            backend.write("round-000001.json", content())
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (tmp_path / "round-000001.json").read_bytes() == b"whole"

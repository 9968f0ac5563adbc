"""The cache of server states before round 1: keyed by all that they depend on, read only undamaged."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rayfed_ssl import run
from rayfed_ssl.config.schema import Config
from rayfed_ssl.engine.federation import Federation
from rayfed_ssl.engine.server_init_cache import facts_of, first_state
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.machine.environment import compute_threads
from rayfed_ssl.methods import METHODS
from rayfed_ssl.records.manifest import settings_sha256
from rayfed_ssl.trees import digest

Tiny = Callable[..., Config]

FREE = {"dictionary": "false", "dictionary_size": "7", "ensembling": "0", "beta": "0.5"}
"""Other values of what FedCA's server does not look at before round 1."""


class Counting(Federation):
    """A federation that counts how often its server has begun."""

    begun = 0

    def init_server(self) -> Any:
        """Count."""
        self.begun += 1
        return super().init_server()


@pytest.fixture
def begin(tiny: Tiny, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Begin a run of FedCA that shares; tells how often its server trained, and the digest of what it begins with."""

    def begin(*overrides: str, method: str = "fedca") -> tuple[int, str]:
        federation = Counting.open(tiny(method, f"engine.shared={tmp_path / 'shared'}", *overrides))
        state = first_state(federation)
        return federation.begun, digest(state)

    return begin


def cached(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "shared").glob("*.safetensors"))


def test_a_run_has_the_same_bits_with_and_without_it(tiny: Tiny, tmp_path: Path):
    alone = run(tiny("fedca", "rounds=1"), tmp_path / "alone")
    config = tiny("fedca", "rounds=1", f"engine.shared={tmp_path / 'shared'}")
    first, second = run(config, tmp_path / "first"), run(config, tmp_path / "second")
    assert len(cached(tmp_path)) == 1
    assert first.state_sha256 == second.state_sha256 == alone.state_sha256
    assert first.scores == second.scores == alone.scores
    assert first.record.ledger == second.record.ledger == alone.record.ledger
    assert settings_sha256(first.record.config()) == settings_sha256(alone.record.config())


def test_runs_that_differ_in_what_is_not_used_at_the_start_train_it_once(begin, tiny: Tiny, tmp_path: Path):
    begun, expected = begin()
    assert begun == 1
    for name, value in FREE.items():
        others = f"method.{name}={value}", "evaluation.every=2", "engine.actors=1", "engine.attempts=9"
        assert begin(*others) == (0, expected), name
    assert len(cached(tmp_path)) == 1
    for name, value in FREE.items():
        assert digest(Federation.open(tiny("fedca", f"method.{name}={value}")).init_server()) == expected, name


MATTERS = [
    *("seed=1", "rounds=3", "training.epochs=2", "training.batch=16", "training.optimizer.lr=0.01", "data.seed=1"),
    *("method.align_epochs=3", "method.parts.projector=local", "objective.temperature=0.5", "public=fraction:0.2"),
    *("model.projection_dim=16", "engine.precision=bf16", "engine.server_threads=2", "data.validation=0.2"),
]


def test_whatever_may_matter_makes_another_start(tiny: Tiny):
    usual = facts_of(Federation.open(tiny("fedca")))
    for override in MATTERS:
        assert facts_of(Federation.open(tiny("fedca", override))) != usual, override


def test_threads_images_and_weights_to_start_from_matter(tiny: Tiny, tmp_path: Path):
    federation = Federation.open(tiny("fedca"))
    before = facts_of(federation)
    with compute_threads(2):
        assert facts_of(federation) != before
    images = federation.public.images.images.copy()
    images[federation.public.rows[0]] ^= 255
    object.__setattr__(federation.public.images, "images", images)
    assert facts_of(federation) != before
    starts = []
    for seed in (0, 1):
        trained = run(tiny("fedavg", "rounds=1", f"seed={seed}"), tmp_path / f"start-{seed}").directory
        (tmp_path / "start.safetensors").write_bytes((trained / "encoders" / "global.safetensors").read_bytes())
        starts.append(facts_of(Federation.open(tiny("fedca", f"model.start={tmp_path / 'start.safetensors'}"))))
    assert starts[0] != starts[1] != before


def test_where_nothing_is_trained_nothing_is_kept(begin, tmp_path: Path):
    assert begin("method.beta=0", "public=null")[0] == 1
    for method in ("fedavg", "flesd", "fedmd", "local"):
        assert begin(method=method)[0] == 1, method
    assert not (tmp_path / "shared").exists()


def damage_tensor(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a bit of a tensor": damage_tensor,
    "no state": Path.unlink,
    "no digest": lambda path: path.with_suffix(".json").unlink(),
    "half a digest": lambda path: path.with_suffix(".json").write_text('{"sha256": "12'),
}


def test_a_damaged_state_is_made_anew(begin, tmp_path: Path):
    _, expected = begin()
    (path,) = cached(tmp_path)
    good = path.read_bytes()
    for name, damage in DAMAGES.items():
        damage(path)
        assert begin() == (1, expected), name
        assert path.read_bytes() == good
    assert begin() == (0, expected)


def test_a_directory_that_cannot_be_is_refused_in_one_line(tiny: Tiny, tmp_path: Path):
    (tmp_path / "file").write_text("")
    federation = Counting.open(tiny("fedca", f"engine.shared={tmp_path / 'file' / 'below'}"))
    with pytest.raises(ConfigError, match=r"engine\.shared=.*file.* cannot be written \(.*\): name another"):
        first_state(federation)
    assert federation.begun == 0


def test_only_fedca_trains_before_the_first_round():
    """Of others, `init_server` draws weights at most; who adds one that trains says so with `costly_start`."""
    assert {name for name, info in METHODS.items() if info.method().costly_start()} == {"fedca"}

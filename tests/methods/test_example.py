"""examples/my_method.py, a method of one's own outside the package: its step, and how it is run."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from examples.my_method import FedAvgM, momentum_step
from rayfed_ssl.config.schema import Config
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.runs import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_method.py"


def test_the_velocity_adds_up():
    weights = {"w": torch.tensor([1.0, 2.0])}
    mean = {"w": torch.tensor([2.0, 2.0])}
    moved, velocity = momentum_step(weights, mean, None, 0.5)
    assert (moved["w"].tolist(), velocity["w"].tolist()) == ([2, 2], [1, 0])
    moved, velocity = momentum_step(moved, mean, velocity, 0.5)
    assert (moved["w"].tolist(), velocity["w"].tolist()) == ([2.5, 2], [0.5, 0])
    assert weights["w"].tolist() == [1, 2]


def test_statistics_of_batch_norm_have_no_momentum():
    """A variance that falls from 1 to 0.1 would go on to fall below 0, and features would not be numbers."""
    weights = {"bn.running_var": torch.tensor([1.0]), "bn.num_batches_tracked": torch.tensor(3)}
    mean = {"bn.running_var": torch.tensor([0.1]), "bn.num_batches_tracked": torch.tensor(5)}
    moved, velocity = momentum_step(weights, mean, None, 0.9)
    assert momentum_step(moved, mean, velocity, 0.9) == (mean, {})


def test_a_momentum_of_one_is_refused(tiny: Callable[..., Config]):
    with pytest.raises(ConfigError, match=r"^method\.momentum: input should be less than 1, got 1$"):
        tiny("fedavg", "method={name: 'examples.my_method:FedAvgM', momentum: 1}")


def test_the_example_is_short_and_runs_by_its_name(tiny: Callable[..., Config], tmp_path: Path):
    assert len(EXAMPLE.read_text().splitlines()) < 80
    config = tiny("fedavg", "method={name: 'examples.my_method:FedAvgM', momentum: 0.5}", "evaluation.diagnostics=1")
    assert config.method == FedAvgM(momentum=0.5)
    result = run(config, tmp_path / "run")
    plain = run(tiny("fedavg"), tmp_path / "plain")
    assert result.state_sha256 != plain.state_sha256


@pytest.mark.slow
@pytest.mark.ray
def test_the_example_runs_through_ray_from_another_directory(tmp_path: Path):
    """Two actors and this process give the same bits; the actors import the module from the working directory."""
    shutil.copy(EXAMPLE, tmp_path / "my_method.py")
    digests = []
    for executor in ("ray", "local"):
        command = [
            *(sys.executable, "-m", "tune.cli", "run", "digits", "method=my_method:FedAvgM", "method.momentum=0.5"),
            *("data.train_limit=150", "training.epochs=1", f"engine.executor={executor}", "engine.actors=2"),
            *("public=null", "engine.device=cpu", "--out", executor, "-q"),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        record = (tmp_path / executor / "run.json").read_text()
        digests.append(re.findall(r'"state_sha256": *"([0-9a-f]{64})"', record))
    assert digests[0]
    assert digests[0] == digests[1]

"""What a command begins before it imports torch."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from rayfed_ssl.config.sections import Clients
from rayfed_ssl.machine.processor import NotPortableError
from rayfed_ssl.machine.resources import cores
from tune.cli.ahead import CLIENTS, workers_wanted

RECIPE = "clients: {number: 3}\nengine: {executor: ray}\n"


@pytest.mark.parametrize(
    ("settings", "actors"),
    [
        ([], 3),
        (["engine.actors=auto"], 3),
        (["engine.actors=1"], 1),
        (["engine.actors=100000"], 100_000),
        (["clients.number=2"], 2),
        (["clients.number=many"], CLIENTS),
        (["clients=null"], None),
        (["engine=5"], None),
        (["engine.executor=local"], None),
        (["no setting"], None),
    ],
)
def test_a_run_on_a_private_ray_wants_its_actors_and_a_server_as_far_as_there_are_cores(settings, actors, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    wanted = workers_wanted(recipe, settings)
    assert wanted == (0 if actors is None else min(cores(), actors) + 1)


def test_a_recipe_that_is_not_there_wants_nothing(tmp_path):
    assert workers_wanted(tmp_path / "none.yaml", []) == 0


def test_a_portable_run_restarts_its_process_before_anything_is_imported():
    with pytest.raises(NotPortableError):
        workers_wanted("digits", ["engine.cpu=portable"])


def test_a_recipe_without_a_number_of_clients_has_as_many_as_the_configuration_says():
    assert Clients().number == CLIENTS


@pytest.mark.slow
def test_a_mistake_that_is_found_while_ray_starts_leaves_nothing_of_it(tmp_path):
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp") as own:  # sockets' names must be short
        command = [sys.executable, "-m", "tune.cli", "run", "digits", "rounds=0", "--out", str(tmp_path / "run")]
        environment, pipes = {**os.environ, "TMPDIR": own}, {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        done = subprocess.run(command, env=environment, **pipes, text=True, timeout=300, check=False)
        dying = [process for process in psutil.process_iter(["cmdline"]) if own in str(process.info["cmdline"])]
        assert psutil.wait_procs(dying, timeout=60)[1] == []
        assert (done.returncode, done.stdout, list(Path(own).iterdir())) == (2, "", [])
    assert len(done.stderr.splitlines()) == 1

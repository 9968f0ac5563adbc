"""The cluster file of this package: Ray takes it, and it opens nothing to the world."""

import re
from pathlib import Path

import pytest
import yaml

from actors import RAY_ENVIRONMENT

FILE = Path(__file__).parents[2] / "cluster.yaml"


@pytest.fixture(scope="module")
def filled():
    """The file's content with every placeholder filled in."""
    return yaml.safe_load(re.sub(r"FILL_IN_\w+", "filled", FILE.read_text()))


def test_ray_takes_the_file(filled):
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(filled))


def test_the_file_names_what_ray_would_open_to_the_world(filled):
    assert filled["provider"]["use_internal_ips"] is True
    for kind in filled["available_node_types"].values():
        node = kind["node_config"]
        assert {"ImageId", "SubnetIds", "SecurityGroupIds", "IamInstanceProfile"} <= node.keys()
        assert node["MetadataOptions"]["HttpTokens"] == "required"


def test_the_cluster_runs_with_a_token_and_the_settings_of_a_ray_of_our_own(filled):
    assert "--dashboard-host=127.0.0.1" in filled["head_start_ray_commands"][1]
    for kind in ("head", "worker"):
        words = filled[f"{kind}_start_ray_commands"][1].replace(";", " ").split()
        assert "RAY_AUTH_MODE=token" in words
        for name, value in RAY_ENVIRONMENT.items():
            if name.startswith(("RAY_free", "RAY_worker", "GLIBC")):
                assert f"{name}={value}" in words

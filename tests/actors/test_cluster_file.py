"""The cluster file of this package, and the problems that are found in spoiled copies of it."""

import copy
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from actors import RAY_ENVIRONMENT
from actors.cluster.cluster_file import PLACEHOLDER, RULES, check_cluster_file
from actors.errors import ClusterError
from tune.cli.app import app

FILE = Path(__file__).parents[2] / "cluster.yaml"


@pytest.fixture(scope="module")
def filled():
    """The file's content with every placeholder filled in."""
    return yaml.safe_load(PLACEHOLDER.sub("filled", FILE.read_text()))


def replace(tree, kind, old, new):
    key = f"{kind}_start_ray_commands"
    assert any(old in command for command in tree[key])
    tree[key] = [command.replace(old, new) for command in tree[key]]


def head(tree):
    return tree["available_node_types"]["head"]["node_config"]


def gpu(tree):
    return tree["available_node_types"]["gpu"]


TOKEN, RENAMED = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH=$HOME/secret RAY_AUTH_MODE"
BATCH, NICENESS, LOCAL = "RAY_free_objects_batch_size", "RAY_worker_niceness", "--dashboard-host=127.0.0.1"

SPOILED = {
    "max_workrs": lambda t: t.update(max_workrs=3),
    "max_workers: '3' is not of type": lambda t: t.update(max_workers="3"),
    "Ray cannot use it: NotImplementedError": lambda t: t["provider"].update(type="moon"),
    "Ray cannot use it: ValueError: `head_node_type`": lambda t: t.update(head_node_type="queen"),
    "Ray cannot use it: ValueError: The specified global": lambda t: gpu(t).update(min_workers=9, max_workers=9),
    "provider.use_internal_ips: must be true": lambda t: t["provider"].update(use_internal_ips=False),
    "provider.security_group: Ray adds port 22 from the world": lambda t: t["provider"].update(
        security_group={"GroupName": "g"}
    ),
    "provider.type: only aws is checked here, got gcp": lambda t: t["provider"].update(type="gcp"),
    "head.node_config.ImageId: is missing": lambda t: head(t).pop("ImageId"),
    "gpu.node_config.SubnetIds: is missing": lambda t: gpu(t)["node_config"].pop("SubnetIds"),
    "head.node_config.SecurityGroupIds: is missing": lambda t: head(t).update(SecurityGroupIds=[]),
    "head.node_config.IamInstanceProfile: is missing": lambda t: head(t).pop("IamInstanceProfile"),
    "head.node_config.NetworkInterfaces: may ask for a public address": lambda t: head(t).update(
        NetworkInterfaces=[{}]
    ),
    "head.node_config.MetadataOptions: set HttpTokens": lambda t: head(t).update(MetadataOptions={}),
    "the head must not be on spot": lambda t: head(t).update(InstanceMarketOptions={"MarketType": "spot"}),
    "setup_commands: is missing": lambda t: t.pop("setup_commands"),
    "head_start_ray_commands: is missing": lambda t: t.pop("head_start_ray_commands"),
    "worker_start_ray_commands: is missing": lambda t: t.update(worker_start_ray_commands=[]),
    "needs --dashboard-host=127.0.0.1": lambda t: replace(t, "head", LOCAL, ""),
    "listens on all interfaces": lambda t: replace(t, "head", "127.0.0.1", "0.0.0.0"),
    "head_start_ray_commands: `ray start` needs RAY_AUTH_MODE=token": lambda t: replace(t, "head", "=token", "=off"),
    "worker_start_ray_commands: `ray start` needs RAY_AUTH_MODE": lambda t: replace(t, "worker", f"{TOKEN}=token", ""),
    f"other settings than the head's: {NICENESS}": lambda t: replace(t, "worker", f"{NICENESS}=0", ""),
    "can read the token": lambda t: replace(t, "head", TOKEN, f"RAY_AUTH_TOKEN=abc {TOKEN}"),
    "no entry brings the token to /.ray/auth_token": lambda t: t["file_mounts"].pop("/home/ubuntu/.ray/auth_token"),
    "no entry brings the token to /secret": lambda t: [replace(t, kind, TOKEN, RENAMED) for kind in ("head", "worker")],
    f"export {BATCH}": lambda t: [replace(t, kind, f"{BATCH}=1", "") for kind in ("head", "worker")],
    "1 values are not filled in yet: FILL_IN_REGION": lambda t: t["provider"].update(region="FILL_IN_REGION"),
}


@pytest.mark.parametrize("expected", SPOILED)
def test_a_spoiled_file_is_found_out_in_one_line(filled, tmp_path, expected):
    tree = copy.deepcopy(filled)
    SPOILED[expected](tree)
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(tree))
    problems = check_cluster_file(tmp_path / "cluster.yaml")
    assert [problem for problem in problems if expected in problem]
    assert all(len(problem.splitlines()) == 1 for problem in problems)


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_is_without_a_spoiled_file(filled, rule):
    def finds(spoil):
        tree = copy.deepcopy(filled)
        spoil(tree)
        try:
            return list(rule(tree))
        except (KeyError, TypeError):
            return []

    assert any(finds(spoil) for spoil in SPOILED.values())


def test_the_cluster_runs_with_the_settings_of_a_ray_of_our_own(filled):
    for name, value in RAY_ENVIRONMENT.items():
        if name.startswith(("RAY_free", "RAY_worker", "GLIBC")):
            assert f"{name}={value} " in filled["head_start_ray_commands"][1].replace(";", " ")


def test_a_file_that_is_no_yaml_is_named_with_its_line(tmp_path):
    (tmp_path / "c.yaml").write_text("a: 1\nb: [\n")
    with pytest.raises(ClusterError, match=r"c.yaml cannot be read as YAML \(.*line 3"):
        check_cluster_file(tmp_path / "c.yaml")
    with pytest.raises(ClusterError, match=r"cannot be read as YAML \(.*No such file or directory"):
        check_cluster_file(tmp_path / "none.yaml")


def test_doctor_names_what_is_wrong_and_fails(filled, tmp_path):
    result = CliRunner().invoke(app, ["doctor", "--cluster", str(FILE)])
    assert result.exit_code == 1
    missing = "FILL_IN_BUCKET, FILL_IN_HEAD_PROFILE_ARN, "
    assert result.stderr.startswith(f"error: 7 values are not filled in yet: {missing}")
    assert len(result.stderr.splitlines()) == 1
    (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(filled))
    assert CliRunner().invoke(app, ["doctor", "--cluster", str(tmp_path / "cluster.yaml")]).exit_code == 0

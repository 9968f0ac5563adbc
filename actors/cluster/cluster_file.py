"""Checking a `cluster.yaml` without a cloud: Ray's own schema, and rules for what the schema accepts but is unsafe."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from actors import RAY_ENVIRONMENT
from actors.errors import ClusterError
from rayfed_ssl.config.recipes import plain_data

PLACEHOLDER = re.compile(r"FILL_IN_\w+")

NEEDED_NODE_KEYS = {
    "ImageId": "Ray would take Ubuntu 18.04",
    "SubnetIds": "Ray would take the default subnets, whose machines have public addresses",
    "SecurityGroupIds": "Ray would make a group that opens port 22 to the world",
    "IamInstanceProfile": "Ray would make a role that may do anything with EC2 and S3",
}

COMMANDS = ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands")

Rule = Callable[[Mapping[str, Any]], Iterator[str]]


def check_cluster_file(path: Path) -> list[str]:
    """List the problems of a cluster file, a line each; with an empty list it is ready for `ray up`."""
    try:
        tree = plain_data(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ClusterError(f"{path} cannot be read as YAML ({reason}): name the file that `ray up` takes") from None
    if not isinstance(tree, dict):
        return [f"{path} must hold settings by name, got {type(tree).__name__}: start from this project's cluster.yaml"]
    problems = list(_schema(tree))
    return problems or [problem for rule in RULES for problem in rule(tree)]


def _schema(tree: Mapping[str, Any]) -> Iterator[str]:
    """Apply Ray's own check, which looks at the file with its defaults."""
    from jsonschema import ValidationError
    from ray.autoscaler._private.util import prepare_config, validate_config

    try:
        validate_config(prepare_config(copy.deepcopy(dict(tree))))
    except ValidationError as error:
        where = ".".join(map(str, error.absolute_path)) or "the file"
        yield f"{where}: {error.message}"
    except Exception as error:  # of prepare_config: a missing key, a wrong type, an unknown provider
        yield f"Ray cannot use it: {type(error).__name__}: {error}"


def _provider(tree: Mapping[str, Any]) -> Iterator[str]:
    provider = tree["provider"]
    if provider["type"] != "aws":
        yield f"provider.type: only aws is checked here, got {provider['type']}: look at Ray's documentation of it"
        return
    if "security_group" in provider:
        yield (
            "provider.security_group: Ray adds port 22 from the world to it: make a group and name it in SecurityGroupIds"
        )
    if provider.get("use_internal_ips") is not True:
        yield "provider.use_internal_ips: must be true, or Ray looks for public subnets and connects over the internet"


def _nodes(tree: Mapping[str, Any]) -> Iterator[str]:
    for name, kind in tree["available_node_types"].items():
        node, place = kind["node_config"], f"available_node_types.{name}"
        for key, otherwise in NEEDED_NODE_KEYS.items():
            if not node.get(key):
                yield f"{place}.node_config.{key}: is missing, and {otherwise}"
        if node.get("MetadataOptions", {}).get("HttpTokens") != "required":
            yield f"{place}.node_config.MetadataOptions: set HttpTokens: required, so that no request can be tricked into it"
        if "NetworkInterfaces" in node:
            yield f"{place}.node_config.NetworkInterfaces: may ask for a public address: use SubnetIds and SecurityGroupIds"
    head = tree["available_node_types"][tree["head_node_type"]]["node_config"]
    if "InstanceMarketOptions" in head:
        yield f"available_node_types.{tree['head_node_type']}: the head must not be on spot, for the cluster ends with it"


def _commands(tree: Mapping[str, Any]) -> Iterator[str]:
    for key in COMMANDS:
        if not tree.get(key):
            yield f"{key}: is missing, and Ray's own would take its place: a nightly build, its dashboard on all interfaces"
    if "dashboard-host=127.0.0.1" not in _start(tree, "head"):
        yield "head_start_ray_commands: `ray start --head` needs --dashboard-host=127.0.0.1, or it listens on all interfaces"


def _token(tree: Mapping[str, Any]) -> Iterator[str]:
    settings = {kind: _exported(_start(tree, kind)) for kind in ("head", "worker")}
    for kind, exported in settings.items():
        if exported.get("RAY_AUTH_MODE") != "token":
            yield f"{kind}_start_ray_commands: `ray start` needs RAY_AUTH_MODE=token: its ports execute code"
        if "RAY_AUTH_TOKEN" in exported:
            yield f"{kind}_start_ray_commands: any user who lists processes can read the token: mount it as a file"
    path = settings["head"].get("RAY_AUTH_TOKEN_PATH", "/.ray/auth_token").replace("$HOME", "").replace("~", "")
    if not any(target.endswith(path) for target in tree.get("file_mounts", {})):
        yield f"file_mounts: no entry brings the token to {path} on the machines"
    if settings["head"] != settings["worker"]:
        unlike = sorted(dict(settings["head"].items() ^ settings["worker"].items()))
        yield f"worker_start_ray_commands: other settings than the head's: {', '.join(unlike)}"
    needed = {name for name in RAY_ENVIRONMENT if name.startswith(("RAY_free", "RAY_worker"))}
    missing = sorted(needed - settings["head"].keys())
    if missing:
        yield f"head_start_ray_commands: export {', '.join(missing)} as this package does for a Ray of its own"


def _placeholders(tree: Mapping[str, Any]) -> Iterator[str]:
    found = sorted(set(PLACEHOLDER.findall(yaml.safe_dump(dict(tree)))))
    if found:
        yield f"{len(found)} values are not filled in yet: {', '.join(found)}"


def _start(tree: Mapping[str, Any], kind: str) -> str:
    return next((command for command in tree.get(f"{kind}_start_ray_commands") or [] if "ray start" in command), "")


def _exported(command: str) -> dict[str, str]:
    return dict(re.findall(r"\b(RAY_\w+)=(\S*?)(?=[\s;]|$)", command))


RULES: tuple[Rule, ...] = (_provider, _nodes, _commands, _token, _placeholders)
"""The rules, in the order of their problems."""

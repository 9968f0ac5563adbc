"""Finding a running Ray and checking that it accepts this process, before Ray itself tries for a minute."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
from ray._raylet import Config  # type: ignore[attr-defined]

from actors.cluster.stale_sessions import PREFIX
from actors.errors import ClusterError

CHEAPEST_CALL = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""The first request of every driver; it is empty."""


@dataclass(frozen=True)
class LocalNode:
    """A node of a Ray on this machine: the address of that Ray's head, and the node's directory."""

    head: str
    directory: str

    @property
    def is_private(self) -> bool:
        """Whether a run of this package started it for itself."""
        return Path(self.directory).parent.name.startswith(PREFIX)

    @property
    def is_shared(self) -> bool:
        """Whether `ray start` or `ray up` started it."""
        file = Path(self.directory) / "ray_current_cluster"
        return file.is_file() and file.read_text().strip() == self.head


def local_nodes() -> Iterator[LocalNode]:
    """Find the nodes of every Ray on this machine."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "raylet":
            flags = dict(text.split("=", 1) for text in process.info["cmdline"] or [] if "=" in text)
            if "--gcs-address" in flags:
                yield LocalNode(flags["--gcs-address"], flags.get("--temp_dir", ""))


def resolve_address(address: str) -> str:
    """Turn "auto" into the address of the only Ray that this machine is a node of, or raise `ClusterError`."""
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address != "auto":
        return address
    heads = sorted({node.head for node in local_nodes() if not node.is_private})
    if not heads:
        raise ClusterError(
            "no Ray runs on this machine: start one with `ray up cluster.yaml` and run on its head, or leave --address out"
        )
    if len(heads) > 1:
        raise ClusterError(
            f"{len(heads)} Rays run on this machine, at {' and '.join(heads)}: choose one with --address"
        )
    return heads[0]


def check_address(address: str, timeout: float) -> None:
    """Raise `ClusterError` unless Ray answers at an address, accepts this process, and has a node on this machine."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ClusterError(f"Ray's address must be host:port or auto, got {address!r}: see `ray status` on the head")
    status, reason = _probe(address, None, timeout)
    if status in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        raise ClusterError(
            f"there is no Ray at {address} ({reason}): start it with `ray up cluster.yaml` or correct the address; "
            "the port of a head is 6379 by default"
        )
    if status is grpc.StatusCode.UNAUTHENTICATED:
        _check_token(address, timeout)
    if not any(node.head.rpartition(":")[2] == port for node in local_nodes()):
        raise ClusterError(
            f"this machine is no node of the Ray at {address}, and a driver must run on one: use `ray exec cluster.yaml` "
            "or `ray job submit`"
        )


def _check_token(address: str, timeout: float) -> None:
    """Check this process's token; Ray would try a wrong one twenty times, with a line for each."""
    advice = "set RAY_AUTH_TOKEN_PATH to a copy of the token file that its nodes use"
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        raise ClusterError(f"the Ray at {address} requires a token, but RAY_AUTH_MODE=disabled: unset it, and {advice}")
    source, token = _token()
    if not token:
        raise ClusterError(f"the Ray at {address} requires a token, but there is none in {source}: {advice}")
    if _probe(address, token, timeout)[0] is grpc.StatusCode.UNAUTHENTICATED:
        raise ClusterError(f"the Ray at {address} refuses the token in {source}: {advice}")
    use_token()


def use_token() -> None:
    """Let this process send its token; Ray, which read the environment when it was imported, reads it again."""
    os.environ["RAY_AUTH_MODE"] = "token"
    Config.initialize("")


def _token() -> tuple[str, str]:
    """Look for the token in the order of Ray; returns its source, and "" where it is missing."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN", os.environ["RAY_AUTH_TOKEN"].strip()
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").expanduser()
    try:
        return str(path), path.read_text().strip()
    except OSError:
        return str(path), ""


def _probe(address: str, token: str | None, timeout: float) -> tuple[grpc.StatusCode, str]:
    """Make a call; returns its status and the reason of a failure."""
    # No web proxy between a driver and its cluster.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(CHEAPEST_CALL, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", timeout=timeout, metadata=[("authorization", f"Bearer {token}")] if token else None)
        except grpc.RpcError as error:
            return error.code(), " ".join(error.details().split()).rpartition(": ")[2].lower()
        return grpc.StatusCode.OK, ""

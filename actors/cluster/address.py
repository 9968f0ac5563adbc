"""Finding a running Ray and its door: what cannot be entered is refused in one line, before Ray tries for a minute."""

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
from ray._raylet import Config  # type: ignore[attr-defined]

from actors.cluster.stale_sessions import PREFIX

HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
HTTP2_SETTINGS = b"\x04"
"""What a client of gRPC, which Ray's head speaks, says first, and the type of the frame that it hears back."""

CHEAPEST_CALL = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""What every driver asks first; the request is empty."""


class ClusterError(ValueError):
    """Ray cannot run what was asked of it; the message says what was needed, what is there and what to do."""


@dataclass(frozen=True)
class LocalNode:
    """A node of some Ray on this machine: the address of that Ray's head, and the node's directory."""

    head: str
    directory: str

    @property
    def is_private(self) -> bool:
        """Whether a run of this package started it for itself alone."""
        return Path(self.directory).name.startswith(PREFIX)

    @property
    def is_shared(self) -> bool:
        """Whether `ray start` or `ray up` started it, for all who come."""
        named = Path(self.directory) / "ray_current_cluster"
        return named.is_file() and named.read_text().strip() == self.head


def local_nodes() -> Iterator[LocalNode]:
    """Find the nodes of every Ray that runs on this machine, whoever started them."""
    for process in psutil.process_iter(["name", "cmdline"]):
        if process.info["name"] == "raylet":
            flags = dict(word.split("=", 1) for word in process.info["cmdline"] or [] if "=" in word)
            if "--gcs-address" in flags:
                yield LocalNode(flags["--gcs-address"], flags.get("--temp_dir", ""))


def resolve(address: str) -> str:
    """Turn "auto" into the address of the Ray that this machine is a node of.

    Raises:
        ClusterError: It is a node of none, or of several.
    """
    named = os.environ.get("RAY_ADDRESS", "auto")
    if address != "auto":
        return address
    if named != "auto":
        return named
    found = sorted({node.head for node in local_nodes() if not node.is_private})
    if not found:
        raise ClusterError(
            "no Ray runs on this machine: start one with `ray up cluster.yaml` and run on its head, or leave --address out"
        )
    if len(found) > 1:
        raise ClusterError(f"{len(found)} Rays run on this machine, at {' and '.join(found)}: say which with --address")
    return found[0]


def knock(address: str, timeout: float) -> None:
    """See that Ray answers at an address, lets this process in, and has a node here for it.

    Raises:
        ClusterError: It does not.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "/" in host:
        raise ClusterError(f"Ray's address must be host:port or auto, got {address!r}: see `ray status` on the head")
    _greet(address, host, int(port), timeout)
    _show_token(address, timeout)
    if not any(node.head.rpartition(":")[2] == port for node in local_nodes()):
        raise ClusterError(
            f"this machine is no node of the Ray at {address}, and its driver must run on one: use `ray exec cluster.yaml` "
            "or `ray job submit`"
        )


def _greet(address: str, host: str, port: int, timeout: float) -> None:
    try:
        with socket.create_connection((host, port), timeout) as connection:
            connection.sendall(HTTP2_GREETING)
            answer = connection.recv(9)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ClusterError(
            f"there is no Ray at {address} ({reason.lower()}): start it with `ray up cluster.yaml` or correct the address"
        ) from None
    if answer[3:4] != HTTP2_SETTINGS:
        raise ClusterError(f"what answers at {address} is not Ray: give the port of its head node, by default 6379")


def _show_token(address: str, timeout: float) -> None:
    """Try this process's token where one is asked for; Ray would try a wrong one twenty times, a line each."""
    if _lets_in(address, None, timeout):
        return
    advice = "set RAY_AUTH_TOKEN_PATH to a copy of the token file that its nodes use"
    if os.environ.get("RAY_AUTH_MODE") == "disabled":
        raise ClusterError(f"the Ray at {address} asks for a token, but RAY_AUTH_MODE=disabled: unset it, and {advice}")
    source, token = _token()
    if not token:
        raise ClusterError(f"the Ray at {address} asks for a token, but there is none in {source}: {advice}")
    if not _lets_in(address, token, timeout):
        raise ClusterError(f"the Ray at {address} refuses the token in {source}: {advice}")
    use_token()


def use_token() -> None:
    """Make this process show its token; Ray has read the environment when it was imported, and reads it again."""
    os.environ["RAY_AUTH_MODE"] = "token"
    Config.initialize("")


def _token() -> tuple[str, str]:
    """Look for the token where Ray does: first place that is named wins."""
    if os.environ.get("RAY_AUTH_TOKEN"):
        return "RAY_AUTH_TOKEN", os.environ["RAY_AUTH_TOKEN"].strip()
    path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token").expanduser()
    try:
        return str(path), path.read_text().strip()
    except OSError:
        return str(path), ""


def _lets_in(address: str, token: str | None, timeout: float) -> bool:
    """Whether a Ray answers with this token; what is neither yes nor no is left to Ray itself."""
    # A proxy of the web has no business between a driver and its cluster.
    with grpc.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
        call = channel.unary_unary(CHEAPEST_CALL, request_serializer=bytes, response_deserializer=bytes)
        try:
            call(b"", timeout=timeout, metadata=[("authorization", f"Bearer {token}")] if token else None)
        except grpc.RpcError as error:
            return bool(error.code() != grpc.StatusCode.UNAUTHENTICATED)
        return True

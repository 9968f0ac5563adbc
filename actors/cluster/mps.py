"""NVIDIA's MPS, under which kernels of processes that share a GPU run at the same time: the daemon of a private Ray."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from actors.cluster.stale_sessions import MPS_PIPE, kill_processes
from actors.errors import ClusterError

PROGRAM = "nvidia-cuda-mps-control"
"""Starts the daemon, and asks it; part of NVIDIA's driver."""

MAX_CLIENTS = 48
"""Processes that a GPU of compute capability 7.0 and later serves at most under MPS."""

TIMEOUT = 20.0
"""Seconds that the daemon may take to start, to answer, to serve a first program, or to end."""

QUIT = 'cat > /dev/null; echo quit | "$0"'
"""What a shell runs to end the daemon when its standard input ends, so also when the driver was killed."""

CLIENT = (sys.executable, "-P", "-m", "actors.cluster.mps_client")
"""A first CUDA program: only then does the daemon start what serves the GPUs, and it may fail."""


def is_available() -> bool:
    """Whether the control program is on the PATH."""
    return shutil.which(PROGRAM) is not None


def is_joined() -> bool:
    """Whether CUDA_MPS_PIPE_DIRECTORY names a daemon that answers: it is used, and left alone."""
    return MPS_PIPE in os.environ and is_available() and answers(os.environ) is True


def answers(environment: Mapping[str, str]) -> bool | None:
    """Ask a daemon for anything; None if a busy machine leaves open whether it is there."""
    try:
        return _call([PROGRAM], environment, "get_default_active_thread_percentage\n")[0] == 0
    except subprocess.TimeoutExpired:
        return None


def visible_gpus() -> dict[str, str]:
    """Name GPUs that were chosen by number by their UUIDs: MPS numbers those of its daemon, Ray those of the machine."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    if not any(word.strip().isdigit() for word in chosen):
        return {}
    import torch  # a start of Ray does without it

    uuids = [torch.cuda.get_device_properties(index).uuid for index in range(torch.cuda.device_count())]
    return {"CUDA_VISIBLE_DEVICES": ",".join(f"GPU-{uuid}" for uuid in uuids)}


@dataclass
class MpsDaemon:
    """A daemon with directories of its own, which only its user can enter; it ends with `stop`, or with this process.

    `is_required` says what happens without it: an error, or a warning.
    """

    directory: Path
    is_required: bool = False
    _gpus: dict[str, str] = field(default_factory=visible_gpus)
    _guard: "subprocess.Popen[bytes] | None" = None
    _is_lost: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """What the processes that it serves have in their environment."""
        names = {MPS_PIPE: "pipe", "CUDA_MPS_LOG_DIRECTORY": "log"}
        return {name: str(self.directory / path) for name, path in names.items()} | self._gpus

    def start(self) -> bool:
        """Start it; False if it cannot serve, and then nothing of it is left."""
        try:
            reason = self._start()
        except subprocess.TimeoutExpired as error:
            reason = f"{Path(error.cmd[0]).name} takes longer than {TIMEOUT:g} s"
        if reason:
            self.stop()
            self._report(f"did not start ({reason})")
        return not reason

    def _start(self) -> str:
        """Returns why it cannot serve, or ""."""
        for path in (self.directory, self.directory / "pipe", self.directory / "log"):
            path.mkdir(mode=0o700)
        environment = os.environ | self.environment
        # In a session of its own, which Ctrl-C does not reach: the actors end first.
        self._guard = subprocess.Popen(
            ["sh", "-c", QUIT, PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        if reason := _failure([PROGRAM, "-d"], environment):
            return reason
        deadline = time.monotonic() + TIMEOUT
        while not answers(environment):
            if time.monotonic() > deadline:
                return f"no answer within {TIMEOUT:g} s"
            time.sleep(0.1)
        return _failure(CLIENT, environment)

    @contextmanager
    def exported(self) -> Iterator[None]:
        """Let processes that are started meanwhile inherit the environment."""
        before = {name: os.environ.get(name) for name in self.environment}
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                os.environ.update({} if value is None else {name: value})

    def check(self) -> None:
        """Notice once that it has died, and raise `ClusterError` or warn.

        Without its pipes CUDA does without MPS, so actors that died with it, and are created again, work.
        """
        if not self._is_lost and answers(os.environ | self.environment) is False:
            self._is_lost = True
            shutil.rmtree(self.directory / "pipe", ignore_errors=True)
            self._report("died")

    def _report(self, what: str) -> None:
        if self.is_required:
            raise ClusterError(
                f"engine.mps=on, but NVIDIA's MPS {what}: see with `nvidia-smi` if the GPUs work, or set engine.mps=auto"
            )
        warnings.warn(f"NVIDIA's MPS {what}: actors share GPUs without it", RuntimeWarning, stacklevel=2)

    def stop(self) -> None:
        """End it, with everything that it served."""
        if self._guard is not None and self._guard.stdin is not None:
            self._guard.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._guard.wait(TIMEOUT)
            kill_processes(self.directory)
            self._guard.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def _failure(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command; returns the last line of one that failed, or ""."""
    status, output = _call(command, environment)
    return (output.strip().splitlines() or [f"exit status {status}"])[-1] if status else ""


def _call(command: Sequence[str], environment: Mapping[str, str], text: str = "") -> tuple[int, str]:
    """Run a command; returns its status and output, which goes to a file as a daemon keeps a pipe open."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        ended = subprocess.run(
            command,
            input=text,
            text=True,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            timeout=TIMEOUT,
            start_new_session=True,
            check=False,
        )
        output.seek(0)
        return ended.returncode, output.read()

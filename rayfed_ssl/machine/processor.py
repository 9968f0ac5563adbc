"""Equal bits on x86-64 processors with AVX2: what libraries read from the environment before they are loaded.

Without these variables PyTorch, oneDNN, MKL, NumPy and OpenBLAS choose kernels by the processor, and kernels sum in
different orders. What is portable was measured, not promised by the libraries; docs/bits.md says on which processors.
"""

import os
import platform
import sys
from pathlib import Path

from rayfed_ssl.errors import ConfigError

PORTABLE = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",  # of MKL's modes, other vendors' processors have this one and AUTO
    "MKL_DYNAMIC": "FALSE",
    "OMP_DYNAMIC": "FALSE",
    "OPENBLAS_CORETYPE": "Haswell",
    # NumPy's names of AVX-512 up to 2.3, then those since 2.4; it ignores names that it does not have.
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR X86_V4",
}
"""Environment variables of `engine.cpu=portable`."""

REQUIRED = {"avx2", "fma"}
"""Instruction sets that a processor must have."""


class NotPortableError(RuntimeError):
    """This process was not started with the variables of `engine.cpu=portable`."""


def set_up_portable_cpu() -> None:
    """Prepare this process, and those that it starts, for `engine.cpu=portable`.

    Raises:
        ConfigError: PyTorch or NumPy is loaded already, or the processor has no AVX2.
    """
    if is_portable():
        return
    if loaded := [name for name in ("numpy", "torch") if name in sys.modules]:
        raise ConfigError(
            f"engine.cpu=portable must be set up before {' and '.join(loaded)} are imported: call "
            "rayfed_ssl.set_up_portable_cpu() at the top of the program"
        )
    os.environ.update(PORTABLE)
    check_process("portable")


def is_portable() -> bool:
    """Whether this process has the variables."""
    return PORTABLE.items() <= os.environ.items()


def check_process(cpu: str) -> None:
    """Check that this process computes as `engine.cpu` says.

    Raises:
        NotPortableError: It was started without the variables.
        ConfigError: The processor has no AVX2, or the variables are set for a run that is not portable.
    """
    if cpu != "portable":
        if is_portable():
            raise ConfigError(
                f"engine.cpu={cpu} cannot be computed with the variables of engine.cpu=portable: unset {' '.join(PORTABLE)}"
            )
        return
    if missing := sorted(REQUIRED - cpu_flags()):
        raise ConfigError(
            f"engine.cpu=portable needs an x86-64 processor with AVX2 and FMA, this {platform.machine()} lacks "
            f"{' and '.join(missing)}: take engine.cpu=native"
        )
    if not is_portable():
        raise NotPortableError(
            "engine.cpu=portable must be set up before torch is imported: call rayfed_ssl.set_up_portable_cpu() at the top "
            "of the program"
        )


def cpu_flags() -> frozenset[str]:
    """Read the processor's instruction sets; empty where the system does not list them as Linux does on x86-64."""
    path = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not path.exists():
        return frozenset()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()

"""A CUDA program that computes nothing and fails, with CUDA's error, where MPS cannot serve the GPUs.

    python -m actors.cluster.mps_client

It imports no torch, so that a run waits for little besides CUDA.
"""

import ctypes
import sys


def main() -> None:
    """Make a context on each GPU."""
    cuda, count, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_int(), ctypes.c_void_p()
    errors = [cuda.cuInit(0), cuda.cuDeviceGetCount(ctypes.byref(count))]
    errors += [cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), index) for index in range(count.value)]
    if any(errors) or not count.value:
        sys.exit(f"CUDA's error is {max(errors)} on {count.value} GPUs")


if __name__ == "__main__":
    main()

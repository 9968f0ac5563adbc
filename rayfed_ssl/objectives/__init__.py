"""Local objectives, one file each; the registry is explicit."""

from rayfed_ssl.objective import Head, Objective
from rayfed_ssl.objectives.simclr import SimCLR
from rayfed_ssl.objectives.supervised import Supervised

OBJECTIVES: dict[str, type[Objective]] = {"simclr": SimCLR, "supervised": Supervised}

__all__ = ["OBJECTIVES", "Head", "Objective", "SimCLR", "Supervised"]

"""Local objectives, one file each; the registry is explicit."""

from rayfed_ssl.objective import Head, Objective
from rayfed_ssl.objectives.byol import BYOL
from rayfed_ssl.objectives.moco import MoCo
from rayfed_ssl.objectives.simclr import SimCLR
from rayfed_ssl.objectives.simsiam import SimSiam
from rayfed_ssl.objectives.supervised import Supervised

OBJECTIVES: dict[str, type[Objective]] = {
    "simclr": SimCLR,
    "moco": MoCo,
    "byol": BYOL,
    "simsiam": SimSiam,
    "supervised": Supervised,
}

__all__ = ["BYOL", "OBJECTIVES", "Head", "MoCo", "Objective", "SimCLR", "SimSiam", "Supervised"]

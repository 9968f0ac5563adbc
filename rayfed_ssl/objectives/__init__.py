"""Local objectives, one file each; the registry is explicit."""

from rayfed_ssl.objectives.align_uniform import AlignUniform
from rayfed_ssl.objectives.autoencoder import AutoEncoder
from rayfed_ssl.objectives.barlow_twins import BarlowTwins
from rayfed_ssl.objectives.byol import BYOL
from rayfed_ssl.objectives.deepcluster import DeepCluster
from rayfed_ssl.objectives.dino import DINO
from rayfed_ssl.objectives.fedx import FedXObjective
from rayfed_ssl.objectives.ibot import IBOT
from rayfed_ssl.objectives.lejepa import LeJEPA
from rayfed_ssl.objectives.mae import MAE
from rayfed_ssl.objectives.moco import MoCo
from rayfed_ssl.objectives.orchestra import OrchestraObjective
from rayfed_ssl.objectives.rotation import Rotation
from rayfed_ssl.objectives.simclr import SimCLR
from rayfed_ssl.objectives.simsiam import SimSiam
from rayfed_ssl.objectives.spectral import Spectral
from rayfed_ssl.objectives.supervised import Supervised
from rayfed_ssl.objectives.swav import SwAV
from rayfed_ssl.objectives.vicreg import VICReg
from rayfed_ssl.training.objective import Objective

OBJECTIVES: dict[str, type[Objective]] = {
    "simclr": SimCLR,
    "moco": MoCo,
    "byol": BYOL,
    "simsiam": SimSiam,
    "swav": SwAV,
    "deepcluster": DeepCluster,
    "rotation": Rotation,
    "autoencoder": AutoEncoder,
    "mae": MAE,
    "dino": DINO,
    "ibot": IBOT,
    "align-uniform": AlignUniform,
    "spectral": Spectral,
    "barlow-twins": BarlowTwins,
    "vicreg": VICReg,
    "lejepa": LeJEPA,
    "orchestra": OrchestraObjective,
    "fedx": FedXObjective,
    "supervised": Supervised,
}
"""Objectives by name."""

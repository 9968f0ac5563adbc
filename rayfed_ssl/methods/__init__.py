"""Federated methods, one file each; the registry is explicit."""

from dataclasses import dataclass

from rayfed_ssl.method import Method
from rayfed_ssl.methods.fcl import FCL
from rayfed_ssl.methods.fedavg import FedAvg
from rayfed_ssl.methods.fedca import FedCA
from rayfed_ssl.methods.feddf import FedDF
from rayfed_ssl.methods.fedema import FedEMA
from rayfed_ssl.methods.fedfoa import FedFoA
from rayfed_ssl.methods.fedmar import FedMAR
from rayfed_ssl.methods.fedmd import FedMD
from rayfed_ssl.methods.fedprox import FedProx
from rayfed_ssl.methods.fedsc import FedSC
from rayfed_ssl.methods.fedsigreg import FedSIGReg
from rayfed_ssl.methods.fedu import FedU
from rayfed_ssl.methods.fedu2 import FedU2
from rayfed_ssl.methods.fedx import FedX
from rayfed_ssl.methods.flesd import FLESD
from rayfed_ssl.methods.ldawa import LDAWA
from rayfed_ssl.methods.local_only import LocalOnly
from rayfed_ssl.methods.orchestra import Orchestra
from rayfed_ssl.methods.ssd import SSD


@dataclass(frozen=True)
class MethodInfo:
    """A name under which a method can be run.

    Attributes:
        method: The class whose fields are the hyperparameters.
        summary: One line for `rayfed-ssl list methods`.
        rounds: The number of rounds that the name stands for, or None.
    """

    method: type[Method]
    summary: str
    rounds: int | None = None


METHODS: dict[str, MethodInfo] = {
    "flesd": MethodInfo(FLESD, "distil the ensemble of clients' similarities on public data (Shi et al. 2021)"),
    "flesd-cc": MethodInfo(FLESD, "FLESD with constant communication: one round (Shi et al. 2021)", rounds=1),
    "fedavg": MethodInfo(FedAvg, "average weights (McMahan et al. 2017)"),
    "fedprox": MethodInfo(FedProx, "average weights, local training held near the global ones (Li et al. 2020)"),
    "fedmd": MethodInfo(
        FedMD, "agree on projections of public data, each client with its own model (Li and Wang 2019)"
    ),
    "feddf": MethodInfo(FedDF, "average per architecture, then distil all models on public data (Lin et al. 2020)"),
    "fedca": MethodInfo(FedCA, "FedAvg with shared negatives and a model to align with (Zhang et al. 2020)"),
    "fedu": MethodInfo(
        FedU, "global encoder, global predictor only for clients that moved little (Zhuang et al. 2021)"
    ),
    "fedema": MethodInfo(FedEMA, "mix the global model into the client's, by how far it moved (Zhuang et al. 2022)"),
    "ldawa": MethodInfo(LDAWA, "average layers, scaled by their cosine to the global ones (Rehman et al. 2023)"),
    "ssd": MethodInfo(SSD, "average weights, clients stretch dimensions of their own (Fang et al. 2025)"),
    "fedx": MethodInfo(
        FedX, "FedAvg with SimCLR, relations and the global model distilled into clients (Han et al. 2022)"
    ),
    "fedu2": MethodInfo(FedU2, "spread representations uniformly, move where all clients agree (Liao et al. 2024)"),
    "fedfoa": MethodInfo(FedFoA, "add others' correlations to any method's training (Liu et al. 2022)"),
    "fedsc": MethodInfo(FedSC, "FedAvg with spectral contrast on everybody's correlations (Jing et al. 2024)"),
    "fedsigreg": MethodInfo(
        FedSIGReg, "FedAvg with LeJEPA towards a normal distribution of everybody's samples (ours)"
    ),
    "fedmar": MethodInfo(FedMAR, "FedAvg with MAE, latents held near everybody's (Chen et al. 2026)"),
    "fcl": MethodInfo(FCL, "FedAvg with MoCo on everybody's features and matched neighborhoods (Wu et al. 2022)"),
    "orchestra": MethodInfo(Orchestra, "average weights, and cluster clients' clusters (Lubana et al. 2022)"),
    "local": MethodInfo(LocalOnly, "no federation: lower bound per client, upper bound with partition=pooled"),
}
"""Methods by the name under which they can be run."""

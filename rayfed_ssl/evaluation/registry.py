"""The papers' evaluation protocols by name, one explicit registry.

Where a paper is silent a value is ours and `docs/evaluation.md` says so. Numbers of different protocols are not comparable.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from rayfed_ssl.evaluation.protocols import Linear, Neighbors, Protocol, SemiSupervised, Transfer

BEST = "_best"  # ending of a score whose epoch the test set has chosen
ATTACK_SUCCESS = "attack_success"
"""Share of test pictures with an adversary's trigger that a linear probe takes for its target class."""

ATTACK_SUCCESS_KNN = f"{ATTACK_SUCCESS}_knn"
"""The same of the vote of nearest neighbors."""

OWN = "own_"
"""How names begin of what is measured of a client on samples of its own; `is_score` is about a common test set."""

OWN_SAMPLES = f"{OWN}samples"
"""How many samples a client is scored on."""

OWN_ENCODERS = ("global", "personal", "tuned", "start")
"""Encoders by which a client is scored, in the order of tables."""

OWN_SCORES = tuple(f"{OWN}{encoder}_{score}" for encoder in OWN_ENCODERS for score in ("knn", "linear"))

OWN_SUMMARIES = ("std", "worst_tenth", "gaining")
"""Endings of what is about all clients: standard deviation, mean of the lowest tenth, share of clients above the start."""

OWN_GOALS = (*OWN_SCORES, *(f"{name}_{summary}" for name in OWN_SCORES for summary in OWN_SUMMARIES))
"""What a study may seek of clients' own scores; those without an ending are means over clients."""

FEDCA = "FedCA (Zhang et al. 2020), text"
FCL = "FCL (2022), text"


def _semi_fedca(percent: int) -> SemiSupervised:
    return SemiSupervised(
        name=f"semi-fedca-{percent}",
        description=f"fine-tuning of everything under an MLP on {percent} % of the labels, any of them",
        source=f"{FEDCA}, Table 2; batch, crops and which labels are ours",
        fraction=percent / 100,
        subset="random",
    )


def _semi_swav(percent: Literal[1, 10]) -> SemiSupervised:
    lr, head_lr = {1: (0.02, 5.0), 10: (0.01, 0.2)}[percent]
    return SemiSupervised(
        name=f"semi-swav-{percent}",
        description=f"fine-tuning of everything under a linear layer on {percent} % of the labels, balanced",
        source=f"{FCL}, Table 2, which follows SwAV (Caron et al. 2020), code",
        head="linear",
        optimizer="sgd",
        lr=lr,
        head_lr=head_lr,
        batch=256,
        epochs=20,
        milestones=(12, 16),
        decay=0.2,
        fraction=percent / 100,
        subset="balanced",
    )


PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        protocol.name: protocol
        for protocol in (
            Neighbors(
                name="knn",
                description="weighted vote of the 200 nearest training samples",
                source="EasyFL (FedU, FedEMA), code; InstDisc (Wu et al. 2018)",
            ),
            Linear(
                name="linear-flesd",
                description="SGD 0.03, 60 epochs, crops and flips",
                source="FLESD (Shi et al. 2021), code, after MoCo",
                standardize=False,
                augment=True,
            ),
            Linear(
                name="linear-moco",
                description="SGD 30, 100 epochs, crops and flips",
                source=f"{FCL}, Table 1, which follows MoCo (He et al. 2020), code",
                lr=30,
                epochs=100,
                milestones=(60, 80),
                standardize=False,
                augment=True,
            ),
            Linear(
                name="linear-easyfl",
                description="Adam 0.003, 200 epochs of batches of 2048, features computed once",
                source="EasyFL (FedU, FedEMA), code",
                optimizer="adam",
                lr=3e-3,
                epochs=200,
                batch=2048,
                milestones=(),
                standardize=False,
                shuffle=False,
            ),
            Linear(
                name="linear-fedca",
                description="Adam 0.001, 100 epochs, features computed once",
                source=f"{FEDCA}, Table 1; learning rate, batch and no crops are ours",
                optimizer="adam",
                lr=1e-3,
                epochs=100,
                batch=128,
                milestones=(),
                standardize=False,
            ),
            Linear(
                name="linear-fedfoa",
                description="200 epochs of a single linear layer; Adam 0.003, batches of 500, features computed once",
                source="FedFoA (2022), text; all but the epochs and the layer is ours, after EasyFL",
                optimizer="adam",
                lr=3e-3,
                epochs=200,
                batch=500,
                milestones=(),
                standardize=False,
            ),
            _semi_fedca(1),
            _semi_fedca(10),
            _semi_swav(1),
            _semi_swav(10),
            Transfer(
                name="transfer-fedca",
                description="fine-tuning of everything under an MLP on another dataset, resized",
                source=f"{FEDCA}, Table 3; batch and crops are ours",
            ),
        )
    }
)


def is_score(name: str) -> bool:
    """Whether a measured number is an encoder's accuracy, or an adversary's success with it."""
    attack = (ATTACK_SUCCESS, ATTACK_SUCCESS_KNN)
    return name.removesuffix(BEST) in {"knn", "linear", "supervised", *attack, *PROTOCOLS}


__all__ = ["PROTOCOLS", "Protocol", "is_score"]

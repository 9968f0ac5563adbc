"""Attacks on what an upload reveals, one file each, and their registry."""

from collections.abc import Mapping
from types import MappingProxyType

from rayfed_ssl.attacks.analytic import Analytic
from rayfed_ssl.attacks.attack import Attack
from rayfed_ssl.attacks.class_distribution import ClassDistribution
from rayfed_ssl.attacks.decoder import InverseNetwork
from rayfed_ssl.attacks.embedding_norm import EmbeddingNorm
from rayfed_ssl.attacks.encoder_mi import EncoderMI
from rayfed_ssl.attacks.gradient_inversion import GradientInversion
from rayfed_ssl.attacks.matched_representation import MatchedRepresentation
from rayfed_ssl.attacks.rmia import RMIA
from rayfed_ssl.config.choices import Choice

ATTACKS: Mapping[str, type[Attack]] = MappingProxyType(
    {
        "encoder-mi": EncoderMI,
        "embedding-norm": EmbeddingNorm,
        "rmia": RMIA,
        "matched-representation": MatchedRepresentation,
        "class-distribution": ClassDistribution,
        "decoder": InverseNetwork,
        "analytic": Analytic,
        "gradient-inversion": GradientInversion,
    }
)

ATTACK = Choice("attack", lambda: ATTACKS, Attack)

__all__ = ["ATTACK", "ATTACKS", "Attack"]

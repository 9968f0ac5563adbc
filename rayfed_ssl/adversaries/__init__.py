"""Hostile clients: what they send in the place of what they have computed; the registry is explicit."""

from rayfed_ssl.adversaries.adversary import Adversary
from rayfed_ssl.adversaries.omniscient import ALIE, InnerProduct, MinMax
from rayfed_ssl.adversaries.simple import Gaussian, Mimic, Permute, Scaling, SignFlip

ADVERSARIES: dict[str, type[Adversary]] = {
    "sign-flip": SignFlip,
    "gaussian": Gaussian,
    "scaling": Scaling,
    "mimic": Mimic,
    "permute": Permute,
    "alie": ALIE,
    "inner-product": InnerProduct,
    "min-max": MinMax,
}
"""Adversaries by name."""

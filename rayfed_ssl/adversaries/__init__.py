"""Hostile clients: what they send in the place of what they have computed, or train on; the registry is explicit."""

from rayfed_ssl.adversaries.adversary import Adversary
from rayfed_ssl.adversaries.backdoors import CTRL, SSLBackdoor
from rayfed_ssl.adversaries.bad_encoder import BadEncoder
from rayfed_ssl.adversaries.omniscient import ALIE, InnerProduct, MinMax
from rayfed_ssl.adversaries.simple import Gaussian, Mimic, Permute, Scaling, SignFlip
from rayfed_ssl.adversaries.useless import ConstantPictures, WrongPositives

ADVERSARIES: dict[str, type[Adversary]] = {
    "sign-flip": SignFlip,
    "gaussian": Gaussian,
    "scaling": Scaling,
    "mimic": Mimic,
    "permute": Permute,
    "alie": ALIE,
    "inner-product": InnerProduct,
    "min-max": MinMax,
    "wrong-positives": WrongPositives,
    "constant-pictures": ConstantPictures,
    "ssl-backdoor": SSLBackdoor,
    "ctrl": CTRL,
    "bad-encoder": BadEncoder,
}
"""Adversaries by name."""

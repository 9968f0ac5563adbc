"""Robust rules, a file each or some that share a paper; the registry is explicit."""

from rayfed_ssl.aggregation.robust.bulyan import Bulyan
from rayfed_ssl.aggregation.robust.clipping import CenteredClipping, NormBound
from rayfed_ssl.aggregation.robust.coordinates import Meamed, Median, TrimmedMean
from rayfed_ssl.aggregation.robust.eminspector import EmInspector
from rayfed_ssl.aggregation.robust.flame import FLAME
from rayfed_ssl.aggregation.robust.fltrust import FLTrust
from rayfed_ssl.aggregation.robust.foolsgold import FoolsGold
from rayfed_ssl.aggregation.robust.geometric_median import GeometricMedian
from rayfed_ssl.aggregation.robust.krum import Krum, MultiKrum
from rayfed_ssl.aggregation.robust.rule import Rule

RULES: dict[str, type[Rule]] = {
    "krum": Krum,
    "multi-krum": MultiKrum,
    "geometric-median": GeometricMedian,
    "centered-clipping": CenteredClipping,
    "norm-bound": NormBound,
    "fltrust": FLTrust,
    "flame": FLAME,
    "foolsgold": FoolsGold,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "meamed": Meamed,
    "bulyan": Bulyan,
    "eminspector": EmInspector,
}
"""Rules by name."""

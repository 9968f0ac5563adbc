"""Settings of protocols and probes that can give no score are refused."""

import math
from collections.abc import Callable

import pytest

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.evaluation.fine_tuning import FineTuning
from rayfed_ssl.evaluation.linear_probe import LinearProbe
from rayfed_ssl.evaluation.registry import configured


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("linear-moco", {"lr": math.nan}, "protocol linear-moco: lr: input should be a finite number, got nan"),
        ("linear-moco", {"weight_decay": math.inf}, "weight_decay: input should be a finite number, got inf"),
        ("knn", {"temperature": math.nan}, "temperature: input should be a finite number, got nan"),
        ("semi-swav-1", {"head_lr": math.inf}, "head_lr: input should be a finite number, got inf"),
        ("semi-swav-1", {"head_lr": 0}, "fine-tuning needs lr, head_lr and decay above 0, .* got 0.02, 0.0, 0.2, 256"),
        ("semi-swav-1", {"decay": 0}, "fine-tuning needs lr, head_lr and decay above 0"),
        ("linear-moco", {"decay": -0.1}, "the linear probe needs lr and decay above 0, .* got 30, -0.1, 256, 100"),
    ],
)
def test_numbers_that_can_give_no_score_are_refused(name: str, changes: dict[str, float], message: str):
    with pytest.raises(ConfigError, match=message):
        configured(name, changes)


@pytest.mark.parametrize("make", [LinearProbe, FineTuning])
def test_rates_of_a_run_are_finite(make: Callable[..., object]):
    for field in ("lr", "decay", "weight_decay"):
        for value in (math.nan, math.inf):
            with pytest.raises(ValueError, match=r"needs finite lr, .*(nan|inf)"):
                make(**{field: value})

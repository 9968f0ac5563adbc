"""A partition of one's own: shards whose sizes are log-normal, as those of phones are, and whose classes are alike.

rayfed-ssl partition fedsimclr partition=examples.my_partition:log_normal partition.sigma=1.5
"""

from typing import Annotated

import numpy as np
from pydantic import Field


def log_normal(
    labels: np.ndarray,
    num_clients: int,
    generator: np.random.Generator,
    sigma: Annotated[
        float, Field(ge=0, description="Deviation of the logarithm of a shard's size; 0 makes them equal.")
    ] = 1.0,
) -> list[np.ndarray]:
    """Give each client two samples at least, and of the others a share that is log-normal.

    `labels` are int64 [N], -1 for none, and `generator` is the run's. Returns the rows of each client, in ascending id.
    """
    rows = generator.permutation(len(labels))
    shares = generator.lognormal(0.0, sigma, num_clients)
    sizes = 2 + np.floor((len(rows) - 2 * num_clients) * shares / shares.sum()).astype(int)
    return np.split(rows, np.cumsum(sizes))[:num_clients]

"""Orchestra's objective: which sizes it refuses, and what small clients do."""

import pytest

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.objectives import OrchestraObjective
from tests.objectives.local_rounds import Open


def test_more_global_than_local_clusters_are_refused(open_tiny: Open):
    with pytest.raises(ConfigError, match=r"got 12 and 12 from 3 clients: set it to 6 or less"):
        open_tiny("orchestra", "objective.clusters=12")


def test_small_clients_make_fewer_clusters_of_two_samples_at_least(open_tiny: Open):
    objective = OrchestraObjective(clusters=6, local_clusters=4, memory=16)
    assert [objective.num_local(size) for size in (2, 3, 4, 7, 8, 100)] == [1, 1, 2, 3, 4, 4]
    task = open_tiny("orchestra").task
    assert objective.check(task, [8, 50]) == ()
    (note,) = objective.check(task, [3, 7, 50])
    assert note.startswith("2 of 3 clients upload fewer than 4 local clusters: the smallest has 3 samples")

import pytest

from actors.cluster import ClusterError, Node
from actors.placement import Placement, place
from rayfed_ssl.config import Engine

TWO_CORES = [Node("a", cpus=2)]
TWO_GPUS = [Node("a", cpus=16, gpus=2)]


def test_auto_takes_one_actor_per_core():
    assert place(Engine(), 6, TWO_CORES, use_gpu=False) == Placement(2, 1.0, 0.0, "cpu")


def test_there_are_never_more_actors_than_clients():
    assert place(Engine(), 1, TWO_CORES, use_gpu=False).num_actors == 1
    assert place(Engine(actors=2), 1, TWO_CORES, use_gpu=False).num_actors == 1


def test_auto_without_reservations_still_takes_one_actor_per_core():
    assert place(Engine(cpus_per_actor=0), 6, TWO_CORES, use_gpu=False).num_actors == 2


def test_per_client_takes_as_many_actors_as_clients():
    engine = Engine(actors="per-client", cpus_per_actor=0.25)
    assert place(engine, 6, TWO_CORES, use_gpu=False).num_actors == 6


def test_actors_that_do_not_fit_are_refused_with_the_number_that_does():
    with pytest.raises(ClusterError, match=r"^3 client actors of 1 CPUs each .* Ray's 2 CPUs .* set engine.actors=2"):
        place(Engine(actors=3), 6, TWO_CORES, use_gpu=False)


def test_an_actor_does_not_span_two_machines():
    machines = [Node("a", cpus=3), Node("b", cpus=3)]
    assert place(Engine(cpus_per_actor=2), 6, machines, use_gpu=False).num_actors == 2


def test_an_actor_larger_than_any_machine_is_refused():
    with pytest.raises(ClusterError, match=r"0 find room: lower engine.cpus_per_actor"):
        place(Engine(cpus_per_actor=4), 6, TWO_CORES, use_gpu=False)


def test_auto_takes_one_actor_per_gpu():
    assert place(Engine(), 6, TWO_GPUS, use_gpu=True) == Placement(2, 1.0, 1.0, "cuda")


@pytest.mark.parametrize(("actors", "share"), [(2, 1.0), (4, 0.5), (5, 0.3333), (6, 0.3333)])
def test_actors_share_the_gpus_evenly(actors, share):
    assert place(Engine(actors=actors), 6, TWO_GPUS, use_gpu=True).gpus == share


def test_a_fraction_does_not_span_two_gpus():
    assert place(Engine(gpus_per_actor=0.4), 9, TWO_GPUS, use_gpu=True).num_actors == 4
    with pytest.raises(ClusterError, match=r"engine.actors=4, or lower engine.cpus_per_actor or engine.gpus_per_actor"):
        place(Engine(gpus_per_actor=0.4, actors=5), 9, TWO_GPUS, use_gpu=True)


def test_an_actor_may_have_several_gpus():
    assert place(Engine(gpus_per_actor=2), 9, TWO_GPUS, use_gpu=True).num_actors == 1
    with pytest.raises(ClusterError, match="whole number"):
        place(Engine(gpus_per_actor=1.5), 9, TWO_GPUS, use_gpu=True)


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(ClusterError, match="needs a GPU, but Ray has none"):
        place(Engine(device="cuda"), 6, TWO_CORES, use_gpu=True)


def test_a_share_of_a_gpu_has_no_meaning_on_the_cpu():
    with pytest.raises(ClusterError, match=r"gpus_per_actor=0.5 has no meaning .* remove it"):
        place(Engine(gpus_per_actor=0.5), 6, TWO_CORES, use_gpu=False)

"""The heads that objectives put on an encoder are their papers'."""

from dataclasses import replace

import pytest

from rayfed_ssl.objectives import BYOL, AlignUniform, MoCo, Objective, Rotation, SimCLR, SimSiam, Spectral
from rayfed_ssl.objectives.fedx import FedXObjective
from rayfed_ssl.training.task import Task
from tests.objectives.local_rounds import Open

SIMSIAM_AS_BYOL = SimSiam(output_norm=False, hidden=4096, predictor_hidden=4096)

HEADS: list[tuple[Objective, int | None, list[tuple[int, int]], list[int]]] = [
    # objective, width of the projections, layers of projector and predictor, widths of their batch-norms
    (BYOL(), None, [(4096, 256), (2048, 4096), (4096, 2048), (2048, 4096)], [4096, 4096]),
    (BYOL(hidden=48), 24, [(48, 256), (24, 48), (48, 24), (24, 48)], [48, 48]),
    (BYOL(projector="linear"), None, [(256, 256), (4096, 256), (256, 4096)], [4096]),
    (BYOL(predictor="linear", hidden=48), 24, [(48, 256), (24, 48), (24, 24)], [48]),
    (BYOL(projector="linear", predictor="linear"), 24, [(24, 256), (24, 24)], []),
    (SimSiam(), None, [(2048, 256), (2048, 2048), (512, 2048), (2048, 512)], [2048, 2048, 512]),
    (SimSiam(hidden=48, predictor_hidden=12), 24, [(48, 256), (24, 48), (12, 24), (24, 12)], [48, 24, 12]),
    (SIMSIAM_AS_BYOL, None, [(4096, 256), (2048, 4096), (4096, 2048), (2048, 4096)], [4096, 4096]),
    (MoCo(projector="linear"), None, [(128, 256)], []),
    (MoCo(), None, [(256, 256), (128, 256)], []),
    (MoCo(projector="mlp-bn"), None, [(256, 256), (128, 256)], [256]),
    (SimCLR(), None, [(256, 256), (128, 256)], []),
    (SimCLR(projector="mlp-bn", hidden=48), 24, [(48, 256), (24, 48)], [48]),
    (SimCLR(hidden=48), None, [(48, 256), (128, 48)], []),
    (FedXObjective(), None, [(256, 256), (256, 256), (256, 256), (256, 256)], []),
    (FedXObjective(projector="mlp-bn", hidden=48), 24, [(48, 256), (24, 48), (24, 24), (24, 24)], [48]),
    (AlignUniform(), None, [(2048, 256), (512, 2048)], [2048]),
    (Spectral(), None, [(1024, 256), (512, 1024)], []),
    (Spectral(form="orchestra"), None, [(512, 256), (512, 512), (128, 512)], [512, 512]),
    (Rotation(), None, [(4, 256)], []),
    (Rotation(projector="orchestra"), None, [(512, 256), (512, 512), (4, 512)], [512, 512]),
]


@pytest.mark.parametrize(("objective", "projection_dim", "layers", "norms"), HEADS)
def test_heads_are_as_wide_as_the_papers(
    task: Task, objective: Objective, projection_dim: int | None, layers: list[tuple[int, int]], norms: list[int]
):
    weights = replace(task, objective=objective, projection_dim=projection_dim).initial_weights()
    heads = {name: value for name, value in weights.items() if not name.startswith("encoder.")}
    assert [tuple(value.shape) for value in heads.values() if value.dim() == 2] == layers
    assert [len(value) for name, value in heads.items() if name.endswith("running_mean")] == norms


def test_the_supervised_head_is_as_wide_as_the_dataset_has_classes(open_tiny: Open):
    task = open_tiny("fedavg", "objective=supervised", "model.projection_dim=null").task
    assert task.model(task.initial_weights()).projection_dim == 10

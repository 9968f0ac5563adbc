"""What methods refuse at start-up, and what they say about a run that they begin."""

from dataclasses import dataclass, replace

import pytest

from rayfed_ssl.errors import ConfigError
from rayfed_ssl.objectives import SimCLR
from rayfed_ssl.training.objective import Head
from tests.methods.conftest import BYOL, MOCO, Open

REFUSED = [
    ("fcl", ["objective=simclr"], "set objective=moco"),
    ("fcl", [*MOCO, "method.fusion=false"], "method.fusion=true or method.neighborhood=0"),
    ("fcl", [*MOCO, "method.neighbors=50"], "must be below objective.queue_size=50"),
    ("fcl", [*MOCO, "method.parts.target=reset"], "method.parts.target=reset: remove it"),
    ("fcl", [*MOCO, "public=fraction:0.3"], "uses no public data"),
    ("fedca", ["objective.form=ntxent"], "set objective=simclr and objective.form=infonce"),
    ("fedca", ["method.dictionary=false", "objective=moco"], "set objective=simclr"),
    ("fedca", ["objective=moco"], "set objective=simclr and objective.form=infonce"),
    ("fedca", ["public=null"], "public data"),
    ("fedca", ["method.beta=0"], "uses no public data"),
    ("fedca", ["clients.models=[cnn, vgg9]"], "averages weights"),
    ("fedmd", ["public=null"], "public data"),
    ("feddf", ["public=null"], "public data"),
    ("feddf", ["method.parts.batch_norm=local"], "with whole models, got method.parts.batch_norm=local"),
    ("feddf", ["method.parts.projector=local"], "with whole models, got method.parts.projector=local"),
    ("feddf", ["method.parts.predictor=local"], "has no meaning here"),
    ("fedu", [], r"FedU needs an objective with a predictor, .*: set objective=byol"),
    ("fedu", [*BYOL, "method.parts.predictor=local"], "decides about the predictor itself, got method.parts.predictor"),
    ("fedema", ["method.scale=1.0", "method.tau=0.8"], "method.tau=0.8 has no meaning with method.scale=1.0: remove"),
    ("fedema", ["method.parts.encoder=local"], "decides about the encoder itself, got method.parts.encoder=local"),
    (
        "fedsc",
        ["objective.form=orchestra"],
        "contrasts all pairs of views, got objective.form=orchestra: set it to fedsc",
    ),
    ("fedsc", ["objective=simclr"], "fedsc extends the spectral contrast, got SimCLR: set objective=spectral"),
    ("fedmar", ["objective=simclr", "model.projection_dim=8"], "fedmar extends MAE, got SimCLR: set objective=mae"),
    (
        "fedmar",
        ["objective.mask_ratio=0.9"],
        "distances between an image's visible patches, and 1 of 16 is visible: lower objective.mask_ratio",
    ),
    ("fedsigreg", ["objective=simclr"], "fedsigreg extends LeJEPA, got SimCLR: set objective=lejepa"),
    ("ssd", ["method.share=0.001"], "method.share=0.001 of 256 projections is less than one dimension"),
    ("ssd", ["objective=simclr"], "ssd extends alignment and uniformity, got SimCLR: set objective=align-uniform"),
    ("ssd", ["model.projection_dim=24"], "got 24 and 256 dimensions: set model.projection_dim=256 or method.delta=0"),
    ("fedu2", ["method.server_lr=1.0", "method.aggregator=mean"], "has no meaning with method.aggregator=mean: remove"),
    ("fedx", ["objective=simclr"], "an objective of its own, got SimCLR: set objective=fedx"),
    ("fedavg", ["objective=fedx"], "objective=fedx belongs to method=fedx alone, got method=fedavg"),
    ("orchestra", ["objective=simclr"], "an objective of its own, got SimCLR: set objective=orchestra"),
    ("orchestra", ["rounds=1"], "first round trains nothing, got rounds=1: set rounds to 2 or more"),
    ("fedfoa", ["method.base=fedu"], "FedU needs an objective with a predictor"),
    ("fedfoa", ["method.base=fedavg", "clients.models=[cnn, vgg9]"], "all clients need one architecture"),
]


@pytest.mark.parametrize(("name", "overrides", "message"), REFUSED)
def test_what_cannot_work_is_refused(open_tiny: Open, name: str, overrides: list[str], message: str):
    with pytest.raises(ConfigError, match=message):
        open_tiny(name, *overrides)


@pytest.mark.parametrize(
    ("name", "setting", "value"), [("fedprox", "mu", "-1"), ("fedca", "ensembling", "1"), ("ssd", "share", "0")]
)
def test_a_value_out_of_its_range_is_named(open_tiny: Open, name: str, setting: str, value: str):
    with pytest.raises(ConfigError, match=rf"^method\.{setting}: input should be .*, got {value}(\.0)?$"):
        open_tiny(name, f"method.{setting}={value}")


@pytest.mark.parametrize("name", ["fedmd", "feddf", "fedca"])
def test_one_public_sample_is_refused(open_tiny: Open, name: str):
    federation = open_tiny(name)
    with pytest.raises(ValueError, match=f"{name} .* at least 2 public samples, got 1"):
        federation.method.check(federation.task, 1)


@dataclass(frozen=True, kw_only=True)
class Headless(SimCLR):
    """SimCLR on features, which are as wide as the encoder makes them."""

    @property
    def head(self) -> Head:
        return Head("none")


@pytest.mark.parametrize("name", ["fedmd", "feddf", "fedfoa"])
def test_projections_of_different_widths_are_refused(open_tiny: Open, name: str):
    federation = open_tiny(name)
    task = replace(federation.task, client_encoders=("cnn", "vgg9"), projection_dim=None)
    federation.method.check(task, 45)
    with pytest.raises(ValueError, match=r"cnn has 256, vgg9 has 512: set model.projection_dim"):
        federation.method.check(replace(task, objective=Headless()), 45)


NOTES = [
    ("ldawa", ["method.warm_up=3"], "L-DAWA is FedAvg here: all 2 rounds are warm-up, lower method.warm_up"),
    ("fedsc", ["rounds=1"], "FedSC is FedAvg in its first round: set rounds to 2 or more"),
    ("orchestra", [], "Orchestra's first round only builds clusters: 1 of 2 rounds train"),
    ("fedu2", ["method.max_steps=9"], "train for up to 10 epochs, and not for 1, with method.max_steps"),
    ("fedfoa", ["method.warm_up=2"], "FedFoA's term never acts: all 2 rounds are warm-up"),
    ("fedfoa", ["training.batch=16"], "a batch of 16 cannot tell the correlations of 24 projections"),
]


@pytest.mark.parametrize(("name", "overrides", "note"), NOTES)
def test_what_a_method_says_about_a_run(open_tiny: Open, name: str, overrides: list[str], note: str):
    assert any(note in sentence for sentence in open_tiny(name, *overrides).notes)


def test_fedca_needs_public_data_for_the_alignment_alone(open_tiny: Open):
    federation = open_tiny("fedca")
    without = replace(federation.method, beta=0.0)
    assert federation.method.needs_public
    assert not without.needs_public
    without.check(federation.task, 0)

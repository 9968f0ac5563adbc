"""The federation: who takes part, what is refused, what the user is told, what cannot be reached."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rayfed_ssl.analysis.embedding import image_features
from rayfed_ssl.config.schema import Config
from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.data.image_store import Dataset, ImageSet
from rayfed_ssl.engine.diagnostics import encoder_diagnostics
from rayfed_ssl.engine.federation import Federation, check_upload
from rayfed_ssl.engine.round_loop import ClientError, ServerError
from rayfed_ssl.engine.scoring import labeled
from rayfed_ssl.errors import ConfigError
from rayfed_ssl.method import Encoder, Server
from rayfed_ssl.methods import fedavg
from rayfed_ssl.runs import run
from rayfed_ssl.trees import digest
from tests.data.pictures import save, write_folder

Tiny = Callable[..., Config]
Open = Callable[..., Federation]


@pytest.mark.parametrize(
    ("fraction", "size"), [(1.0, 5), (0.9, 5), (0.7, 4), (0.5, 3), (0.49, 2), (0.3, 2), (0.1, 1), (0.01, 1)]
)
def test_a_cohort_is_the_fraction_of_the_clients_and_never_empty(open_tiny: Open, fraction: float, size: int):
    federation = open_tiny("fedavg", "clients.number=5", f"clients.fraction={fraction}")
    for round in range(1, 8):
        cohort = federation.cohort(round)
        assert len(set(cohort)) == len(cohort) == size
        assert list(cohort) == sorted(cohort)
        assert all(type(client_id) is int for client_id in cohort)


def test_the_client_that_gives_its_shard_does_not_train(open_tiny: Open):
    federation = open_tiny("flesd", "public=client:1", "method.distil_batch=8", "clients.number=4")
    assert federation.client_ids == (0, 2, 3)
    assert all(set(federation.cohort(round)) == {0, 2, 3} for round in (1, 2))
    whole = open_tiny("fedavg", "clients.number=4")
    assert np.array_equal(federation.public.rows, whole.shards[1])


@pytest.mark.parametrize("public", ["fraction:0.3", "client:0"])
def test_no_public_sample_is_private(open_tiny: Open, public: str):
    federation = open_tiny("flesd", f"public={public}", "method.distil_batch=8")
    private = np.concatenate(list(federation.shards.values()))
    assert len(np.unique(private)) == len(private)
    assert not np.intersect1d(private, federation.public.rows).size


HELD_OUT = ("data.validation=0.2", "data.test_limit=null")
FEW = "evaluation.knn.neighbors=2"  # no more than any class has


@pytest.mark.parametrize("public", ["fraction:0.3", "client:0"])
def test_held_out_samples_are_nobodys_and_the_same_for_every_seed(open_tiny: Open, public: str):
    held_out = set()
    for seed in (0, 1):
        federation = open_tiny("flesd", f"public={public}", f"seed={seed}", "method.distil_batch=8", *HELD_OUT)
        dataset, images = federation.dataset, federation.dataset.train.images
        assert (len(dataset.train), len(dataset.test)) == (120, 30)
        seen = {images[row].tobytes() for rows in federation.shards.values() for row in rows}
        seen |= {images[row].tobytes() for row in federation.public.rows}
        seen |= {image.tobytes() for image in labeled(federation.config, dataset).images}
        measured = {image.tobytes() for image in dataset.test.images}
        assert not seen & measured
        held_out.add(frozenset(measured))
    assert len(held_out) == 1


def test_a_run_that_measures_on_held_out_samples_says_so(open_tiny: Open):
    note = "accuracies are of 30 held-out training samples (data.validation=0.2), not of the test set"
    assert open_tiny("fedavg", *HELD_OUT, FEW).notes == (note,)
    transfer = ("evaluation.protocols=transfer-fedca", "evaluation.settings.transfer-fedca.dataset=digits")
    assert open_tiny("fedavg", *HELD_OUT, FEW, *transfer).notes == (
        note,
        "accuracies of transfer-fedca are of the test set of the dataset that it transfers to",
    )


def test_public_samples_that_may_be_held_out_ones_are_refused(tiny: Tiny):
    with pytest.raises(ConfigError, match=r"public digits would be drawn from the training samples") as caught:
        Federation.open(tiny("flesd", "public=digits:45", *HELD_OUT))
    assert len(str(caught.value).splitlines()) == 1
    Federation.open(tiny("flesd", "public=digits:45"))


def test_steps_that_teach_nothing_are_said_to(open_tiny: Open):
    note = open_tiny("flesd", "method.queue_size=32", "method.distil_batch=8", "method.refill=epoch", FEW).notes[-1]
    assert note.startswith("only 1 of 5 distillation steps an epoch teach the student")
    assert "method.refill=first" in note


def test_a_public_set_of_less_than_two_batches_is_refused(tiny: Tiny):
    with pytest.raises(
        ConfigError, match=r"got 45 public pictures, queue 32 and batch 23: set method.distil_batch to at most 22"
    ):
        Federation.open(tiny("flesd", "method.distil_batch=23"))
    Federation.open(tiny("flesd", "method.distil_batch=22"))


def test_pictures_that_are_left_out_are_named_in_a_note(tiny: Tiny, tmp_path: Path):
    write_folder(tmp_path, [f"{name}/{i}.png" for name in "ab" for i in range(20)], (8, 8))
    for i in range(4):
        save(tmp_path / "a" / f"torn{i}.png", b"torn")
    data = f"data={{name: folder, path: {tmp_path}, size: 8, on_bad: skip, test_fraction: 0.5}}"
    (note,) = Federation.open(tiny("fedavg", data, "partition=iid", FEW)).notes
    assert note.startswith("unreadable pictures left out: 4 (")
    assert note.endswith("; ...)")
    assert len(set(re.findall(r"torn\d\.png", note))) == 3


def test_a_class_of_several_directories_is_named_in_a_note(tiny: Tiny, tmp_path: Path):
    pictures = [f"sets/{name}/{i}.png" for name in "ab" for i in range(20)] + [f"shown/{i}.png" for i in range(20)]
    write_folder(tmp_path, pictures, (8, 8))
    data = f"data={{name: folder, path: {tmp_path}, size: 8}}"
    for _ in ("decoded", "read from the store"):
        (note,) = Federation.open(tiny("fedavg", data, "partition=iid", FEW)).notes
        assert note == (
            "classes of several directories: 1 of 2, such as sets with 2; if those are the classes, set "
            f"data.path={tmp_path / 'sets'}"
        )


def test_shards_of_less_than_two_samples_are_refused(tiny: Tiny):
    with pytest.raises(ConfigError, match=r"at least 2 samples, but client \d+ has 1.*lower clients.number"):
        Federation.open(tiny("fedavg", "partition=iid", "clients.number=100"))
    Federation.open(tiny("fedavg", "partition=iid", "clients.number=75"))


MISTAKES = {
    "data": ("data=digit", "unknown dataset 'digit'"),
    "folder": ("data={name: folder, path: /nowhere}", "data.path /nowhere does not exist"),
    "model": ("model=resnet17", "unknown encoder 'resnet17': did you mean 'resnet18'"),
    "client's model": ("clients.models=[cnn, rcnn]", "unknown encoder 'rcnn': did you mean 'cnn'"),
    "views": (
        "training.views=digit",
        "training.views: unknown name 'digit', and no module:function: did you mean 'digits'",
    ),
    "schedule": (
        "training.schedule_rounds=1",
        "training.schedule_rounds has no meaning for training.optimizer.schedule=",
    ),
    "public": ("public=client", "cannot read the public set 'client': write client:0"),
    "public client": ("public=client:9", "public client:9 needs that client and another, got 3 clients"),
    "classes": (
        "partition={name: classes_per_client, classes: 11}",
        "each client is to hold 11 classes, but there are 10",
    ),
    "too many clients": ("clients.number=200", "cannot divide 105 samples among 200 clients"),  # 45 are public
    "device": ("engine.device=tpu", "engine.device must be auto, cpu, cuda or cuda:N"),
    "image too small": ("data.size=4", "encoder cnn needs 8 pixels a side, got 4"),
    "stem": ("model.stem=cifar", "encoder cnn has one set of first layers"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_does_not_fit_is_refused_before_the_run_starts(tiny: Tiny, name: str):
    override, message = MISTAKES[name]
    with pytest.raises(ConfigError, match=message) as caught:
        Federation.open(tiny("flesd", override))
    assert len(str(caught.value).splitlines()) == 1


def test_the_first_tensor_that_does_not_fit_is_named_in_every_process():
    names = [f"layer{i}.weight" for i in range(50)]
    received = fedavg.Download({name: torch.zeros(2, 3) for name in reversed(names)})
    # A set's order depends on the process's hash seed: of 50 names it begins with the first in one process of 50.
    with pytest.raises(ValueError, match=r"weights/layer0\.weight has shape \[7\], got \[2, 3\]"):
        check_upload(fedavg.Upload({name: torch.zeros(7) for name in names}, 1), received)


def test_a_classifier_narrower_than_the_classes_is_refused(tiny: Tiny):
    with pytest.raises(ConfigError, match="projection_dim"):
        Federation.open(tiny("fedavg", "objective=supervised", "model.projection_dim=5"))


def with_data(config: Config, labels: list[int], classes: int = 10) -> Federation:
    """A federation of two clients on noise with the given training labels."""
    images = np.random.default_rng(0).integers(0, 256, (len(labels), 1, 8, 8), dtype=np.uint8)
    sets = [ImageSet(images, np.array(labels, np.int64), tuple(map(str, range(classes))))] * 2
    halves = np.array_split(np.arange(len(labels)), 2)
    return Federation(config, Dataset("noise", *sets, "0"), dict(enumerate(halves)))


@pytest.mark.parametrize("labels", [[3] * 40, [-1] * 40, [-1] * 20 + [7] * 20], ids=["one", "none", "one and none"])
def test_one_class_is_enough_to_train_but_not_to_be_scored(tiny: Tiny, labels: list[int]):
    federation = with_data(tiny("fedavg"), labels)
    assert federation.notes == (
        "the training set has fewer than two labeled classes, so no accuracy can be measured on it",
    )
    state = federation.init_server()
    result = federation.update_client(1, 0, federation.method.download(state, 0), None)
    after = federation.update_server(1, state, {0: result.upload}).state
    evaluation = federation.evaluate(federation.method.encoders(after, {})["global"], "global", 1, final=True)
    assert evaluation.metrics == {}


def test_unlabeled_samples_are_not_scored_with(tiny: Tiny):
    federation = with_data(tiny("fedavg", FEW), [0, 1] * 15 + [-1] * 10)
    assert federation.notes == ()
    (note,) = with_data(tiny("fedavg"), [0, 1] * 15 + [1] * 10).notes
    assert note == "kNN takes the 15 nearest samples instead of 200, as the smallest class has no more"
    train = labeled(federation.config, federation.dataset)
    assert len(train) == 30
    assert set(train.labels.tolist()) == {0, 1}


def test_scores_are_the_same_each_time_lie_between_0_and_1_and_write_no_weight(open_tiny: Open):
    federation = open_tiny("fedavg", "evaluation.augment=true", "evaluation.linear.epochs=6")
    encoder = federation.method.encoders(federation.init_server(), {})["global"]
    before = digest(encoder)
    first, again = (federation.evaluate(encoder, "global", 2, final=True) for _ in range(2))
    assert first.metrics == again.metrics
    assert set(first.metrics) == {"knn", "linear", "linear_best", "linear_pseudo_r2"}
    assert all(0 <= first.metrics[name] <= 1 for name in ("knn", "linear", "linear_best"))
    assert first.metrics["linear"] <= first.metrics["linear_best"]
    assert set(federation.evaluate(encoder, "global", 1, final=False).metrics) == {"knn"}
    assert digest(encoder) == before


def test_a_failing_client_names_itself_its_seed_its_cause_and_the_way_to_replay_it(open_tiny: Open):
    federation = open_tiny("fedavg", "training.optimizer.lr=1e30", "training.epochs=2")
    with pytest.raises(ClientError) as caught:
        federation.update_client(1, 2, federation.method.download(federation.init_server(), 2), None)
    message = str(caught.value)
    assert message.startswith("client 2 failed in round 1 (seed ")
    assert "ValueError: the loss is nan in epoch 1 of 2 at learning rate 1e+30: lower the learning rate" in message
    assert message.endswith("rayfed-ssl replay RUN --round 1 --client 2")


def test_weights_from_another_process_are_as_good(open_tiny: Open):
    """Ray hands out read-only arrays; a step on them gives the same bits and writes to none."""
    federation = open_tiny("fedavg")
    download = federation.method.download(federation.init_server(), 0)
    arrays = {name: weights.numpy() for name, weights in download.weights.items()}
    for array in arrays.values():
        array.flags.writeable = False
    from_arrays = replace(download, weights={name: torch.from_numpy(array) for name, array in arrays.items()})
    results = [federation.update_client(1, 0, given, None) for given in (download, from_arrays)]
    assert digest(results[0].upload) == digest(results[1].upload)


def test_no_private_image_can_be_reached_from_the_server(open_tiny: Open):
    """Server: "it has the public data and no client's data; none is reachable from it"."""
    federation = open_tiny("flesd", "public=client:0", "method.distil_batch=8")
    server = Server(1, federation._server_public, federation.task, torch.Generator())
    public = {image.tobytes() for image in federation.public.images.images[federation.public.rows]}
    reachable = {image.tobytes() for image in server.public.images.numpy()}
    assert reachable <= public


def test_a_model_may_see_less_than_the_images_hold(open_tiny: Open):
    federation = open_tiny("fedavg", "data.size=12", "model.image_size=8")
    images = torch.from_numpy(federation.dataset.train.images[:3].copy())
    assert images.shape[2:] == (12, 12)
    center = normalize(images[:, :, 2:10, 2:10], federation.task.views.first)
    assert federation.task.plain(images).equal(center)
    assert federation.task.two_views(images, torch.Generator())[1].shape == (3, 1, 8, 8)
    state = federation.init_server()
    assert federation.update_client(1, 0, federation.method.download(state, 0), None).metrics["loss"] > 0
    encoder = federation.method.encoders(state, {})["global"]
    scores, rows = federation.evaluate(encoder, "global", 2, True).metrics, np.arange(20)

    def plain_features() -> tuple[list[float], float]:
        config, task, dataset = federation.config, federation.task, federation.dataset
        deviation = encoder_diagnostics(encoder, config, task, dataset)["diag_feature_std"]
        return image_features(federation, encoder, dataset.test.images[rows]).tolist(), deviation

    features = plain_features()
    train, test = (
        replace(part, images=part.images[:, :, 2:10, 2:10])
        for part in (federation.dataset.train, federation.dataset.test)
    )
    federation.dataset = replace(federation.dataset, train=train, test=test)
    assert federation.evaluate(encoder, "global", 2, True).metrics == scores
    assert plain_features() == features


def test_a_model_that_sees_more_than_the_images_hold_is_refused(open_tiny: Open):
    with pytest.raises(ConfigError, match=r"model.image_size=9 is more than the images' 8 pixels: raise data.size"):
        open_tiny("fedavg", "model.image_size=9")


def test_the_configuration_of_a_federation_names_its_views(tiny: Tiny, open_tiny: Open):
    assert tiny("fedavg").training.views is None
    assert open_tiny("fedavg").config.training.views == "digits"
    assert open_tiny("fedavg", "training.views=orchestra").config.training.views == "orchestra"


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("fedprox", ("method.mu=1e38", "training.epochs=2"), "what the method adds to the loss is (inf|nan)"),
        # The loss of one step at an absurd rate is finite, and no later loss would tell.
        (
            "fedavg",
            ("training.batch=150", "training.optimizer.lr=2.0e+38"),
            r"the norm of the weights is not finite after the last step at learning rate 2e\+38: lower it",
        ),
    ],
)
def test_what_is_not_finite_stops_the_client(open_tiny: Open, method: str, overrides: tuple[str, ...], message: str):
    federation = open_tiny(method, *overrides)
    download = federation.method.download(federation.init_server(), 0)
    with pytest.raises(ClientError, match=rf"client 0 failed in round 1 .*{message}"):
        federation.update_client(1, 0, download, None)


def test_a_server_that_fails_before_round_1_says_so(open_tiny: Open):
    federation = open_tiny("fedca", "training.optimizer.lr=1e20", "method.align_epochs=9")
    with pytest.raises(ServerError, match=r"the server failed before round 1: .*: lower"):
        federation.init_server()


def test_an_encoder_that_cannot_be_scored_is_named(open_tiny: Open):
    federation = open_tiny("fedavg")
    weights = {
        k: v * float("nan") if v.is_floating_point() else v for k, v in federation.task.initial_weights().items()
    }
    with pytest.raises(
        ServerError,
        match=r"encoder 'global' of round 2 cannot be scored: train features are not finite: .*lower",
    ):
        federation.evaluate(Encoder("cnn", weights), "global", 2, final=False)


@pytest.mark.parametrize("overrides", [(), ("training.drop_last=true",), ("clients.fraction=0.1", "rounds=4")])
def test_a_budget_of_steps_becomes_the_fewest_whole_epochs(open_tiny: Open, tmp_path: Path, overrides: tuple[str, ...]):
    settings = ("partition=iid", "training.batch=16", "evaluation.protocols=[]", *overrides)
    federation = open_tiny("fedavg", "training.total_steps=40", *settings)
    shorter = open_tiny("fedavg", f"training.epochs={federation.config.epochs - 1}", *settings)
    rows = run(federation.config, tmp_path / "run", federation=federation).record.metrics
    taken = sum(row["value"] for row in rows if row["name"] == "steps") / 3
    assert shorter.steps < 40 <= taken
    assert federation.steps == round(taken)
    assert federation.config.training.total_steps is None
    assert Config.load(federation.config.dump()) == federation.config

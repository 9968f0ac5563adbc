"""The transformer for scikit-learn: its contract, the orders of axes, and the bits of its features."""

import pickle  # noqa: TID251  # scikit-learn's own way to store a pipeline
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import estimator_checks_generator

from rayfed_ssl import Config, run
from rayfed_ssl.data.augmentation import normalize
from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.export.encoders import export_encoder
from rayfed_ssl.export.sklearn import EncoderTransformer
from rayfed_ssl.models.precision import choose_precision
from rayfed_ssl.storage.encoder_file import load_encoder, write_export
from tests.conftest import tiny_tree
from tests.export.test_encoder_file import random_export, random_images

DOCS = Path(__file__).parents[2] / "docs"

# scikit-learn's other checks fit on tables of floats, which are no images.
CHECKS = {
    "check_estimator_cloneable",
    "check_estimator_tags_renamed",
    "check_valid_tag_types",
    "check_estimator_repr",
    "check_no_attributes_set_in_init",
    "check_estimators_unfitted",
    "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order",
    "check_transformers_unfitted",
    "check_parameters_default_constructible",
    "check_get_params_invariance",
    "check_set_params",
    "check_fit1d",
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("encoders") / "cnn.safetensors"
    write_export(random_export("cnn", channels=3, size=12), path)
    return path


def test_scikit_learn_s_own_checks_hold():
    checks = estimator_checks_generator(EncoderTransformer("e.safetensors", shape=(3, 12, 12)))
    named = [(check.func.__name__, estimator, check) for estimator, check in checks]
    chosen = [(estimator, check) for name, estimator, check in named if name in CHECKS]
    assert {name for name, *_ in named} >= CHECKS
    for estimator, check in chosen:
        check(estimator)


def test_features_have_the_bits_of_evaluation(path: Path):
    images, encoder = random_images(7, size=12), load_encoder(path)
    precision = choose_precision("cpu", "fp32")
    expected = extract_features(
        encoder, images, lambda batch: normalize(batch, encoder.info.recipe), device="cpu", precision=precision
    )
    transformer = EncoderTransformer(path)
    features = transformer.fit_transform(images)
    assert list(transformer.get_feature_names_out())[::255] == ["encodertransformer0", "encodertransformer255"]
    assert (features.dtype, features.shape) == (np.float32, (7, 256))
    assert np.array_equal(features, expected.numpy())


def test_all_orders_of_axes_mean_the_same(path: Path):
    first = random_images(5, size=12)
    last = np.ascontiguousarray(first.transpose(0, 2, 3, 1))
    expected = EncoderTransformer(path).fit_transform(first)
    assert np.array_equal(EncoderTransformer(path).fit_transform(last), expected)
    for images in (first, last):
        rows = EncoderTransformer(path, shape=images.shape[1:])
        assert np.array_equal(rows.fit_transform(images.reshape(5, -1)), expected)
        assert rows.n_features_in_ == 3 * 12 * 12


def test_a_refit_reads_the_new_path(path: Path, tmp_path: Path):
    write_export(random_export("alexnet", channels=3, size=12), tmp_path / "e.safetensors")
    images, transformer = random_images(2, size=12), EncoderTransformer(path)
    assert transformer.fit_transform(images).shape == (2, 256)
    before = transformer.transform(images)
    transformer.set_params(path=tmp_path / "e.safetensors").fit(images)
    assert transformer.info_.architecture == "alexnet"
    assert not np.array_equal(transformer.transform(images), before)


def test_a_pickle_holds_the_path_and_not_the_weights(path: Path):
    images = random_images(3, size=12)
    transformer = EncoderTransformer(path).fit(images)
    content = pickle.dumps(transformer)
    assert len(content) < 2000 < path.stat().st_size
    assert np.array_equal(pickle.loads(content).transform(images), transformer.transform(images))


def test_images_that_the_encoder_does_not_take_are_refused(path: Path):
    transformer = EncoderTransformer(path).fit(random_images(2, size=12))
    refused = {
        r"takes images of 3 channels and 12 x 12 pixels, got \[2, 1, 12, 12\]": random_images(2, 1, 12),
        r"takes images of 3 channels and 12 x 12 pixels, got \[2, 3, 14, 14\]": random_images(2, 3, 14),
        r"must be \[N, C, H, W\] or \[N, H, W, C\], N at least 1, got \[2, 432\]": random_images(2, 3, 12).reshape(
            2, -1
        ),
        r"N at least 1, got \[0, 3, 12, 12\]": random_images(0, 3, 12),
        "must be uint8, 0 to 255, got float32": random_images(2, 3, 12).astype(np.float32) / 255,
    }
    for message, images in refused.items():
        for call in (transformer.transform, EncoderTransformer(path).fit):
            with pytest.raises(ValueError, match=message) as caught:
                call(images)
            assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match=r"must be \[N, 300\] for shape=\(3, 10, 10\), got \[2, 432\]"):
        EncoderTransformer(path, shape=(3, 10, 10)).fit(random_images(2, 3, 12).reshape(2, -1))
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        EncoderTransformer(path, batch=0).fit(random_images(2, size=12))


def test_it_is_a_step_of_pipelines_and_searches(path: Path):
    images = random_images(24, size=12)
    labels = np.arange(24) % 2
    images[labels == 1] //= 4  # dark and bright images, which any encoder tells apart
    pipeline = make_pipeline(EncoderTransformer(path), StandardScaler(), LogisticRegression(max_iter=300))
    search = GridSearchCV(pipeline, {"logisticregression__C": [0.1, 1.0], "encodertransformer__batch": [24]}, cv=2)
    assert search.fit(images, labels).best_score_ == 1.0


@pytest.mark.slow
def test_the_examples_of_the_documentation_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = Config.load(tiny_tree("fedavg"), "model.encoder=resnet18", "rounds=1", "data.train_limit=60")
    export_encoder(run(config, tmp_path / "run").directory, tmp_path / "encoder.safetensors")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "export.md").read_text(), flags=re.DOTALL)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/export.md", "exec"), names)
    # torchvision's model lies in memory as [N, C, H, W], which sums in another order.
    torch.testing.assert_close(names["features"], names["features_of_any"], rtol=1e-4, atol=1e-5)
    assert names["features"].shape == (100, 512)
    assert names["accuracy"] > 0.7  # random features of digits give as much

"""Exported encoders as steps of scikit-learn pipelines."""

from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from rayfed_ssl.evaluation.features import extract_features
from rayfed_ssl.models.precision import choose_precision
from rayfed_ssl.storage.encoder_file import Info, load_encoder


class EncoderTransformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Turns uint8 images into the features of an exported encoder; fitting learns nothing.

    Features are float32 and have the bits that evaluation computes in float32 with the same batch and threads. A pickled
    transformer holds the path, not the weights.

    Args:
        path: The file that `rayfed-ssl export` has written.
        shape: Shape (C, H, W) or (H, W, C) of an image, where images come flattened as rows [N, C H W]; None for
            images [N, C, H, W] or [N, H, W, C].
        batch: Images at a time; another number may change the last bits.
        device: "cpu", "cuda" and so on.

    Attributes:
        n_features_in_: Values of an image.
        info_: Metadata of the encoder.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        shape: tuple[int, int, int] | None = None,
        batch: int = 512,
        device: str = "cpu",
    ) -> None:
        self.path = path
        self.shape = shape
        self.batch = batch
        self.device = device

    def fit(self, X: Any, y: Any = None) -> "EncoderTransformer":
        """Read the encoder and check that the images (uint8, see `shape`) fit it; labels are ignored.

        Raises:
            ConfigError: The file is missing or no exported encoder.
            ValueError: The images are of another type, shape or number of channels.
        """
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, got {self.batch}")
        self._encoder = load_encoder(self.path, self.device)
        self.info_: Info = self._encoder.info
        self.n_features_in_ = int(np.prod(self._images(X).shape[1:]))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Compute features, float32 [N, feature_dim], in the order of the images; errors as in `fit`."""
        check_is_fitted(self, "info_")
        if not hasattr(self, "_encoder"):  # a pickle leaves it out
            self._encoder = load_encoder(self.path, self.device)
        encoder = self._encoder
        features = extract_features(
            encoder,
            self._images(X),
            encoder.normalize,
            batch=self.batch,
            device=self.device,
            precision=choose_precision(self.device, "fp32"),
        )
        return features.numpy()

    @property
    def _n_features_out(self) -> int:
        return self.info_.feature_dim

    def _images(self, X: Any) -> np.ndarray:
        """Bring images into the order [N, C, H, W] and refuse what the encoder does not take."""
        images = np.asarray(X)
        if images.dtype != np.uint8:
            raise ValueError(f"images must be uint8, 0 to 255, got {images.dtype}: convert them, unscaled")
        if self.shape is not None:
            if len(self.shape) != 3 or images.ndim != 2 or images.shape[1] != np.prod(self.shape):
                raise ValueError(
                    f"images as rows must be [N, {np.prod(self.shape)}] for shape={tuple(self.shape)}, got "
                    f"{list(images.shape)}"
                )
            images = images.reshape(-1, *self.shape)
        if images.ndim != 4 or not len(images):
            raise ValueError(
                f"images must be [N, C, H, W] or [N, H, W, C], N at least 1, got {list(images.shape)}: reshape them, or set "
                "shape for rows of pixels"
            )
        return _channels_first(images, self.info_)

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_encoder"}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.shape is not None
        tags.requires_fit = True
        tags.transformer_tags.preserves_dtype = []
        return tags


def _channels_first(images: np.ndarray, info: Info) -> np.ndarray:
    """Bring axes into order, which shows from the number of channels and the size."""
    if images.shape[1:] == (info.channels, info.size, info.size):
        return images
    if images.shape[1:] == (info.size, info.size, info.channels):
        return images.transpose(0, 3, 1, 2)
    raise ValueError(
        f"the encoder takes images of {info.channels} channels and {info.size} x {info.size} pixels, got "
        f"{list(images.shape)}: convert or resize them"
    )

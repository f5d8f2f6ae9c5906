"""The transformer: features of greedy stacks.

Knows: scikit-learn's conventions for transformers, recipes of stacks. Does not know: how stacks are trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from cotswold.recipe import Recipe, dump, from_values
from cotswold.recipe.schema import Stack
from cotswold.sklearn.image_arrays import ImageFormat, as_images
from cotswold.sklearn.run_fit import run_directory

_ROWS = 100


class StackFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Features of images from locally connected sparse autoencoders, trained without labels.

    The stacks are trained greedily, each on the output of the stacks below. Images have 1 or 3 channels.
    Values other than bytes are rounded to 256 levels between the smallest and the largest of the training
    images. Fitted attributes: `network_`, `transform_` (the preparation of the images), `format_`,
    `recipe_`, `run_directory_`.

    Args:
        stacks: The stacks, from the input upwards: the fields of a recipe's `[[network.stacks]]`, or
            `cotswold.recipe.schema.Stack` objects. [one stack with fields of 8 x 8 pixels]
        shape: Shape of the image in a row, if the samples are rows: (height, width), (height, width,
            channels) or (channels, height, width).
        epochs: Passes over the images for each stack.
        batch_size: Images in a training step.
        whiten: Whiten the images by a filter that is estimated from the training images.
        layer: The map that gives the features, such as ``"1.pooled"``: a stack, and one of filters, pooled or
            output. [output of the last stack]
        random_state: Seed of the initial filters and of the order of images.
        directory: Keep the run of each fit in a new folder inside this one. [no run is kept]
    """

    def __init__(
        self,
        stacks: Sequence[Stack | Mapping[str, Any]] | None = None,
        *,
        shape: tuple[int, ...] | None = None,
        epochs: float = 8.0,
        batch_size: int = 100,
        whiten: bool = True,
        layer: str | None = None,
        random_state: int | np.random.RandomState | None = None,
        directory: str | Path | None = None,
    ) -> None:
        self.stacks = stacks
        self.shape = shape
        self.epochs = epochs
        self.batch_size = batch_size
        self.whiten = whiten
        self.layer = layer
        self.random_state = random_state
        self.directory = directory

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train the stacks.

        Args:
            X: Images ``(n, y, x)``, ``(n, y, x, channel)`` or ``(n, channel, y, x)``, or rows with `shape`.
            y: Ignored.

        Returns:
            This transformer.

        Raises:
            ValueError: Arrays that are no images.
            RecipeError: Settings that are out of range, or stacks that do not fit the images.
        """
        from cotswold import training
        from cotswold.api.threads import compute_threads, preserve_random_states
        from cotswold.run import Stop

        images = as_images(np.asarray(X), self.shape)
        form = ImageFormat.of(images)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with run_directory(self.directory) as path, run_directory(None) as scratch, compute_threads(None):
            scratch.mkdir()
            np.save(scratch / "images.npy", form.pixels(images))
            recipe = self._recipe(form, scratch / "images.npy", seed)
            (scratch / "recipe.toml").write_text(dump(recipe), encoding="utf-8")
            with preserve_random_states():
                job = training.open_job(scratch / "recipe.toml", path, stores=scratch / "stores")
                job.train(watch=lambda event: None, stop=Stop())
            trained = training.trained_stacks(job.run)
        self.network_, self.transform_ = trained.network, trained.prepared.transform
        self.format_, self.recipe_ = form, recipe
        self.run_directory_ = None if self.directory is None else path
        self.n_features_in_ = form.height * form.width * form.channels
        self._n_features_out = self.transform(images[:1]).shape[1]
        return self

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Return the features of images ``(n, feature)``.

        Args:
            X: Images, as for `fit`.

        Raises:
            ValueError: Images of another size than those of the fit.
        """
        check_is_fitted(self)
        from cotswold import analysis
        from cotswold.data import as_image_transform

        pixels = self.format_.pixels(as_images(np.asarray(X), self.shape))
        if self.layer is None:
            layer = analysis.top_layers(self.network_, "output")[-1]
        else:
            layer = analysis.Layer.parse(self.layer)
        respond, prepare = analysis.StackLayers(self.network_, [layer]), as_image_transform(self.transform_)
        found = []
        for start in range(0, len(pixels), _ROWS):
            maps = torch.from_numpy(prepare.values(pixels[start : start + _ROWS]))
            with torch.no_grad():
                found.append(respond.first(maps).flatten(1).float().numpy())
        return np.concatenate(found)

    def _recipe(self, form: ImageFormat, source: Path, seed: int) -> Recipe:
        given = [_default_stack(form)] if self.stacks is None else self.stacks
        stacks = [
            each.model_dump(exclude_unset=True) if isinstance(each, Stack) else dict(each) for each in given
        ]
        table: dict[str, Any] = {
            "name": "stack-features",
            "data": {
                "source": str(source),
                "size": (form.height, form.width),
                "colour": "grey" if form.channels == 1 else "rgb",
                "whiten": self.whiten,
                "unit_rms": True,
                "validation": 0.0,
                "splits": "random",
            },
            "network": {"stacks": stacks},
            "training": {
                "strategy": "greedy",
                "epochs": self.epochs,
                "batch_size": self.batch_size,
                "schedule": "linear",
                "seed": seed,
            },
        }
        return from_values(table, "StackFeatures()")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.shape is not None
        tags.input_tags.three_d_array = True
        return tags


def _default_stack(form: ImageFormat) -> dict[str, Any]:
    """Return fields of at most 8 x 8 pixels that overlap by half."""
    size = min(8, form.height, form.width)
    return {
        "kernel_size": size,
        "stride": max(1, size // 2),
        "block": 2,
        "channels": 8,
        "pool": 1,
        "norm": 5,
        "pool_padding": "same",
    }

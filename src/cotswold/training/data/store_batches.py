"""Batches of a store: shuffled and endless for training, in order for validation.

Knows: the store's reader, the device, the requested window of each sample. Does not know: what is trained,
which rank reads the other windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from types import TracebackType

import torch
from torch import Tensor

from cotswold.data import Reader, Store
from cotswold.data.loading.batch_source import BatchSource
from cotswold.data.loading.batching import Augment
from cotswold.errors import UserError
from cotswold.geometry import Box
from cotswold.ops import images_last
from cotswold.recipe import Recipe
from cotswold.training.strategies.base import WHOLE, Batch, Share

VALIDATION_IMAGES = 512
"""The maximum number of validation samples for the objective of a stack; a supervised run uses all."""
KEPT_BYTES = 64 << 20
"""Validation samples up to this size stay in memory between validations."""


class TrainBatches:
    """The training samples, endlessly, reshuffled in each epoch; whole batches only.

    ``box`` is a window (y, x) of each sample, possibly empty; nothing else is read. Every window gets the
    same samples in the same order, and can resume from the position of another window. ``augmentation``
    changes the samples, differently in each epoch.
    """

    def __init__(
        self,
        store: Store,
        batch: int,
        seed: int,
        device: str,
        *,
        box: Box | None = None,
        augmentation: Augment | None = None,
        feed: BatchSource | None = None,
        share: Share = WHOLE,
    ) -> None:
        """``feed`` makes the batches of the same window, seed and augmentation; None means this process.

        ``share`` says which part of each batch is read. Raises UserError if there are more replicas than
        samples.
        """
        self._store, self._labelled = store, bool(store.outputs)
        self._device = torch.device(device)
        self._batch = min(batch, store.splits["train"])
        part = share.bounds(self._batch)
        if share.count > self._batch:
            raise UserError(
                f"{share.count} replicas need {share.count} samples in each batch, but the store has "
                f"{self._batch}; use fewer replicas"
            )
        self._reader = Reader(
            store,
            "train",
            self._batch,
            seed=seed,
            box=box,
            augmentation=augmentation,
            feed=feed,
            part=None if share.count == 1 else part,
        )

    def __iter__(self) -> Iterator[Batch]:
        while True:
            images, labels = self._reader.next()
            learnt = self._store.learnable(labels) if self._labelled else None
            yield Batch(images, learnt, numbers=self._reader.rows).to(self._device)

    @property
    def batch_size(self) -> int:
        """The samples of a batch, all replicas together."""
        return self._batch

    @property
    def epoch_steps(self) -> float:
        """Batches per epoch; an incomplete batch counts as a fraction."""
        return self._reader.samples / self._batch

    @property
    def waited_seconds(self) -> float:
        """Seconds that training waited for batches."""
        return self._reader.waited_seconds

    def state_dict(self) -> dict[str, object]:
        """Return the position of the next batch."""
        return self._reader.state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Move to a position returned by `state_dict`."""
        self._reader.load_state_dict(state)

    def __enter__(self) -> TrainBatches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()


class ValidationBatches:
    """The validation samples, or a window (y, x) of each, in order; the same each time.

    Args:
        store: The store.
        recipe: Gives the batch size and the device.
        box: The window (default: whole images).
        share: The replica whose turns of the labelled batches are read.
    """

    def __init__(self, store: Store, recipe: Recipe, *, box: Box | None = None, share: Share = WHOLE) -> None:
        self._store, self._recipe, self._box, self._share = store, recipe, box, share
        self._batch = recipe.training.batch_size
        self._device = torch.device(recipe.training.device)
        self._count = store.splits.get("validation", 0)
        self._kept: list[Tensor] | None = None

    def maps(self) -> Iterable[Tensor]:
        """Return at most 512 samples without labels; small ones are read once and kept."""
        if self._kept is not None:
            return self._kept
        maps = self._read()
        shape = self._store.shape
        values = shape.size if self._box is None else shape.channels * self._box.size
        if min(self._count, VALIDATION_IMAGES) * values * 4 > KEPT_BYTES:
            return maps
        self._kept = list(maps)
        return self._kept

    def _read(self) -> Iterator[Tensor]:
        for start, stop in _ranges(min(self._count, VALIDATION_IMAGES), self._batch):
            yield read_maps(self._store, "validation", start, stop, self._box).to(self._device)

    def batches(self) -> Iterator[Batch]:
        """Yield all samples and their labels."""
        if self._count:
            for images, labels in labelled_batches(
                self._store, self._recipe, "validation", box=self._box, share=self._share
            ):
                yield Batch(images, self._store.learnable(labels))


def training_maps(store: Store, recipe: Recipe, most: int | None = None) -> Iterator[Tensor]:
    """Yield the training samples once, in the store's (random) order.

    Args:
        store: The store.
        recipe: Gives the batch size and the device.
        most: The maximum number of samples; None means all.

    Yields:
        Maps ``(channel, y, x, image)`` on the recipe's device.
    """
    count = store.splits["train"]
    for start, stop in _ranges(count if most is None else min(most, count), recipe.training.batch_size):
        yield read_maps(store, "train", start, stop).to(recipe.training.device)


def labelled_batches(
    store: Store, recipe: Recipe, split: str, *, box: Box | None = None, share: Share = WHOLE
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the samples of a split with their labels, in order.

    Args:
        store: The store.
        recipe: Gives the batch size and the device.
        split: The name of the split.
        box: The window (y, x) of each sample to read; None means all of it.
        share: The replica whose turns of the batches are read.

    Yields:
        Maps ``(channel, y, x, image)`` with labels: classes, int64 ``(image,)``, or regression targets,
            float32 ``(image, target)``.
    """
    labels = torch.from_numpy(store.labels(split))
    device = recipe.training.device
    ranges = _ranges(store.splits[split], recipe.training.batch_size)
    for start, stop in islice(ranges, share.index, None, share.count):
        yield read_maps(store, split, start, stop, box).to(device), labels[start:stop].to(device)


def _ranges(count: int, batch: int) -> Iterator[tuple[int, int]]:
    return ((start, min(start + batch, count)) for start in range(0, count, batch))


def read_maps(store: Store, split: str, start: int, stop: int, box: Box | None = None) -> Tensor:
    """Return samples ``start`` to ``stop`` of a split, or a window (y, x) of each, as a map, images last."""
    return images_last(torch.from_numpy(store.read(split, start, stop, box)))

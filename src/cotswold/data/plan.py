"""Which picture goes into which split, and in what order.

Knows: seeds, fractions, names of splits. Does not know: pixels, files of the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cotswold.data.manifest import SPLITS
from cotswold.data.preparation import Preparation
from cotswold.data.source import Source
from cotswold.errors import SourceError, UserError


@dataclass(frozen=True)
class Request:
    """Everything that decides what a store will hold; two equal requests give the same store, bit by bit."""

    source: str
    """`Source.identity`."""
    labelled: bool
    preparation: Preparation
    splits: Literal["random", "folders"]
    validation: float
    test: float
    seed: int
    limit: int | None

    def __post_init__(self) -> None:
        if self.splits not in ("random", "folders"):
            raise UserError(f"splits = {self.splits!r} is neither 'random' nor 'folders'")
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise UserError(
                f"validation = {self.validation} and test = {self.test} leave no picture for training; "
                "give fractions whose sum is below 1"
            )
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit = {self.limit} leaves no pictures; give 1 or more")

    def state(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "source": self.source,
            "labelled": self.labelled,
            "preparation": self.preparation.state(),
            "splits": self.splits,
            "validation": self.validation,
            "test": self.test,
            "seed": self.seed,
            "limit": self.limit,
        }


def assigned(source: Source, request: Request) -> dict[str, NDArray[np.int64]]:
    """The pictures of each split, permuted once; splits without pictures are left out. Raises SourceError."""
    order = np.random.default_rng(request.seed).permutation(len(source))[: request.limit]
    if request.splits == "random":
        held, tested = int(len(order) * request.validation), int(len(order) * request.test)
        parts = {
            "validation": order[:held],
            "test": order[held : held + tested],
            "train": order[held + tested :],
        }
    else:
        parts = _by_name(source, order, request.validation)
    return {name: parts[name] for name in SPLITS if len(parts[name])}


def _by_name(source: Source, order: NDArray[np.int64], validation: float) -> dict[str, NDArray[np.int64]]:
    """By what folders or files are called; a fraction of train is held out where validation has no folder."""
    names = []
    for index in order:
        split = source.split_of(int(index))
        if split is None:
            raise SourceError(
                f"{source.name(int(index))} lies in no folder or file called train, validation or test; "
                'exclude it or use splits = "random"'
            )
        names.append(split)
    words = np.array(names)
    parts = {name: order[words == name] for name in SPLITS}
    if not len(parts["train"]):
        raise SourceError('no folder or file called train has pictures; use splits = "random"')
    if not len(parts["validation"]):
        held = int(len(parts["train"]) * validation)
        parts["validation"], parts["train"] = parts["train"][:held], parts["train"][held:]
    return parts

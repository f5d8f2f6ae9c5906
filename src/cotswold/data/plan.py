"""Which picture goes into which split, and in what order.

Knows: seeds, fractions, names of splits. Does not know: pixels, files of the store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cotswold.data.manifest import SPLITS
from cotswold.data.preparation import Preparation
from cotswold.data.source import Source
from cotswold.errors import SourceError, UserError

Splits = Literal["auto", "random", "folders"]


@dataclass(frozen=True)
class Rule:
    """How pictures are spread over splits, decided once for a source."""

    splits: Literal["random", "folders"]
    test_by_name: bool
    """Whether pictures are drawn at random but for those that are called test, which stay there."""
    why: str
    """A sentence for people; empty where nothing in the source is called like a split."""


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
    test_by_name: bool = False
    """As in `Rule`; stores of versions that mixed them have no such entry in their state."""

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
        named = {"test_by_name": True} if self.test_by_name else {}
        return {
            **named,
            "source": self.source,
            "labelled": self.labelled,
            "preparation": self.preparation.state(),
            "splits": self.splits,
            "validation": self.validation,
            "test": self.test,
            "seed": self.seed,
            "limit": self.limit,
        }


def rule(source: Source, splits: Splits) -> Rule:
    """What ``splits`` means for a source.

    ``"auto"``: ``"folders"`` where every picture lies in a folder or file that is called train, validation
    or test, and some in train and some elsewhere; otherwise ``"random"``. Whatever is asked for, no picture
    that is called test is drawn for training, unless all are.
    """
    if splits not in ("auto", "random", "folders"):
        raise UserError(f"splits = {splits!r} is none of 'auto', 'random' and 'folders'")
    names = _names(source, range(len(source)))
    counts = {name: names.count(name) for name in SPLITS if name in names}
    told = " and ".join(f"{count:,} {name}" for name, count in counts.items())
    whole = None not in names and "train" in counts and len(counts) > 1
    if splits == "folders" or (splits == "auto" and whole):
        held = "" if "validation" in counts else "; validation is drawn from train"
        return Rule("folders", False, f"splits by the names of folders or files: {told}{held}")
    if "test" not in counts:
        why = f"splits at random: nothing is called test ({told})" if counts else ""
        return Rule("random", False, why)
    if counts["test"] == len(names):
        return Rule("random", False, "splits at random: all pictures are called test")
    return Rule(
        "random",
        True,
        f"splits at random, but {counts['test']:,} of {len(names):,} pictures are called test and stay there",
    )


def assigned(source: Source, request: Request) -> dict[str, NDArray[np.int64]]:
    """The pictures of each split, permuted once; splits without pictures are left out. Raises SourceError.

    A picture that is called test is never in another split, unless all are.
    """
    order = np.random.default_rng(request.seed).permutation(len(source))[: request.limit]
    if request.splits == "random":
        parts = _at_random(source, order, request)
    else:
        parts = _by_name(source, order, request.validation)
    return {name: parts[name] for name in SPLITS if len(parts[name])}


def _names(source: Source, order: Iterable[int]) -> list[str | None]:
    return [source.split_of(int(index)) for index in order]


def _at_random(source: Source, order: NDArray[np.int64], request: Request) -> dict[str, NDArray[np.int64]]:
    """Fractions of what is not called test; the test split has a fraction, too, besides what is called so."""
    named = np.array([name == "test" for name in _names(source, order)], bool)
    if named.all():
        if set(_names(source, range(len(source)))) != {"test"}:
            raise SourceError(f"a limit of {request.limit} leaves pictures for testing only; raise it")
        named[:] = False
    drawn = order[~named]
    held, tested = int(len(drawn) * request.validation), int(len(drawn) * request.test)
    return {
        "validation": drawn[:held],
        "test": np.concatenate([drawn[held : held + tested], order[named]]),
        "train": drawn[held + tested :],
    }


def _by_name(source: Source, order: NDArray[np.int64], validation: float) -> dict[str, NDArray[np.int64]]:
    """By what folders or files are called; a fraction of train is held out where validation has no folder."""
    names = _names(source, order)
    if None in names:
        raise SourceError(
            f"{source.name(int(order[names.index(None)]))} lies in no folder or file called train, "
            'validation or test; exclude it or use splits = "random"'
        )
    words = np.array(names)
    parts = {name: order[words == name] for name in SPLITS}
    if not len(parts["train"]):
        raise SourceError('no folder or file called train has pictures; use splits = "random"')
    if not len(parts["validation"]):
        held = int(len(parts["train"]) * validation)
        parts["validation"], parts["train"] = parts["train"][:held], parts["train"][held:]
    return parts

"""Which sample goes into which split, and in what order.

Knows: seeds, fractions, names of splits; that sequences are never torn. Does not know: what a
sample is, files of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cotswold.data.preprocessing import AnyPreparation
from cotswold.data.sources.base import SampleSource
from cotswold.data.sources.checks import described, labels_of
from cotswold.data.sources.sequences import Integers, frames_of
from cotswold.data.store.manifest import SPLITS
from cotswold.errors import SourceError, UserError

Splits = Literal["auto", "random", "folders"]


@dataclass(frozen=True)
class Rule:
    """How samples are spread over splits, decided once for a source."""

    splits: Literal["random", "folders"]
    test_by_name: bool
    """Whether samples are drawn at random but for those that are called test, which stay there."""
    validation_by_name: bool
    """The same for those that are called validation."""
    why: str
    """A sentence for people; empty where nothing in the source is called like a split."""


@dataclass(frozen=True)
class Request:
    """Everything that decides what a store will hold; two equal requests give the same store, bit by bit."""

    source: str
    """`Source.identity`."""
    labelled: bool
    preparation: AnyPreparation
    splits: Literal["random", "folders"]
    validation: float
    test: float
    seed: int
    limit: int | None
    test_by_name: bool = False
    """As in `Rule`; stores of versions that mixed them have no such entry in their state."""
    validation_by_name: bool = False
    """The same."""

    def __post_init__(self) -> None:
        if self.splits not in ("random", "folders"):
            raise UserError(f"splits = {self.splits!r} is neither 'random' nor 'folders'")
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise UserError(
                f"validation = {self.validation} and test = {self.test} leave no sample for training; "
                "give fractions whose sum is below 1"
            )
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit = {self.limit} leaves no samples; give 1 or more")

    def state(self) -> dict[str, Any]:
        """Plain values for JSON."""
        by_name = {"test_by_name": self.test_by_name, "validation_by_name": self.validation_by_name}
        return {
            **{name: True for name, holds in by_name.items() if holds},
            "source": self.source,
            "labelled": self.labelled,
            "preparation": self.preparation.state(),
            "splits": self.splits,
            "validation": self.validation,
            "test": self.test,
            "seed": self.seed,
            "limit": self.limit,
        }


def rule(source: SampleSource, splits: Splits) -> Rule:
    """What ``splits`` means for a source.

    ``"auto"``: ``"folders"`` where every sample lies in a folder or file that is called train, validation
    or test, and some in train and some elsewhere; otherwise ``"random"``. Whatever is asked for, no sample
    that is called test or validation is drawn for training, unless there are no others. Raises SourceError
    for a source without any.
    """
    if splits not in ("auto", "random", "folders"):
        raise UserError(f"splits = {splits!r} is none of 'auto', 'random' and 'folders'")
    if not len(source):
        raise SourceError(f"{described(source)} has no samples; give a source that has some")
    names = source.splits_of(_units(source))
    counts = {name: names.count(name) for name in SPLITS if name in names}
    told = " and ".join(f"{count:,} {name}" for name, count in counts.items())
    whole = None not in names and "train" in counts and len(counts) > 1
    if splits == "folders" or (splits == "auto" and whole):
        held = "" if "validation" in counts else "; validation is drawn from train"
        return Rule("folders", False, False, f"splits by the names of folders or files: {told}{held}")
    kept = _kept_apart(names)
    if kept:
        counted = " and ".join(
            f"{counts[name]:,} of {len(names):,} {_noun(source)} are called {name}"
            for name in SPLITS
            if name in kept
        )
        why = f"splits at random, but {counted} and stay there"
    elif counts:
        only = next(iter(counts))
        why = f"splits at random: all {_noun(source)} are called {only}"
        if len(counts) > 1 or None in names:
            why = f"splits at random: nothing is called test or validation ({told})"
    else:
        why = ""
    return Rule("random", "test" in kept, "validation" in kept, why)


def _kept_apart(names: Sequence[str | None]) -> set[str]:
    """Which of test and validation no sample leaves where splits are drawn at random: both, if there are
    samples for training besides; else test, if there are others than tests."""
    found = set(names)
    if None in found or "train" in found:
        return {"test", "validation"} & {name for name in found if name is not None}
    return {"test"} & {name for name in found if name is not None} if len(found) > 1 else set()


def assigned(source: SampleSource, request: Request) -> dict[str, Integers]:
    """The samples of each split, permuted once; splits without any are left out. Raises SourceError.

    A sample that is called test or validation is never in another split, unless there are no others to train
    on. Fractions are drawn from each class alike. Of frames, whole sequences are permuted and drawn, and
    ``limit`` counts these; the frames of one stay together, in their order.
    """
    units = _units(source)
    order = np.random.default_rng(request.seed).permutation(len(units))[: request.limit]
    if request.splits == "random":
        parts = _at_random(source, units, order, request)
    else:
        parts = _by_name(source, units, order, request.validation)
    found = {name: parts[name] for name in SPLITS if len(parts[name])}
    lengths = source.lengths
    return found if lengths is None else {name: frames_of(part, lengths) for name, part in found.items()}


def _units(source: SampleSource) -> Integers:
    """The first sample of everything that must stay together: of each sequence; otherwise every sample."""
    lengths = source.lengths
    return np.arange(len(source)) if lengths is None else np.cumsum(lengths) - lengths


def _noun(source: SampleSource) -> str:
    return source.kind if source.lengths is None else "sequences"


def _at_random(
    source: SampleSource, units: Integers, order: Integers, request: Request
) -> dict[str, Integers]:
    """Fractions of what is not kept apart by its name; the test split has a fraction, too, besides what is
    called so."""
    kept = _kept_apart(source.splits_of(units))
    names = np.array([name if name in kept else "" for name in source.splits_of(units[order])])
    drawn = order[names == ""]
    if not len(drawn):
        raise SourceError(f"a limit of {request.limit} leaves {_noun(source)} for testing only; raise it")
    validation = order[names == "validation"]
    held = 0 if len(validation) else int(len(drawn) * request.validation)
    tested = int(len(drawn) * request.test)
    validated, left = _drawn(source, units, drawn, held)
    tests, left = _drawn(source, units, left, tested)
    return {
        "validation": np.concatenate([validated, validation]),
        "test": np.concatenate([tests, order[names == "test"]]),
        "train": left,
    }


def _drawn(source: SampleSource, units: Integers, order: Integers, count: int) -> tuple[Integers, Integers]:
    """``count`` of some samples, and the others, each in their order.

    The first ones without classes; with classes as many of each as its share, to one sample. A class keeps at
    least one sample in the others, as far as that leaves enough.
    """
    if not count or not source.classes or source.targets:
        return order[:count], order[count:]
    labels = labels_of(source, units[order])
    by_class = np.argsort(labels, kind="stable")
    first = np.diff(labels[by_class], prepend=labels[by_class[0]] - 1) != 0
    candidates = by_class[~first] if len(order) - int(first.sum()) >= count else by_class
    chosen = candidates[((np.arange(count) + 0.5) * len(candidates) / count).astype(np.int64)]
    is_chosen = np.zeros(len(order), bool)
    is_chosen[chosen] = True
    return order[is_chosen], order[~is_chosen]


def _by_name(
    source: SampleSource, units: Integers, order: Integers, validation: float
) -> dict[str, Integers]:
    """By what folders or files are called; a fraction of train is validation where that has no folder."""
    names = source.splits_of(units[order])
    if None in names:
        raise SourceError(
            f"{source.name(int(units[order[names.index(None)]]))} lies in no folder or file called train, "
            'validation or test; exclude it or use splits = "random"'
        )
    words = np.array(names)
    parts = {name: order[words == name] for name in SPLITS}
    if not len(parts["train"]):
        raise SourceError(f'no folder or file called train has {_noun(source)}; use splits = "random"')
    if not len(parts["validation"]):
        held = int(len(parts["train"]) * validation)
        parts["validation"], parts["train"] = _drawn(source, units, parts["train"], held)
    return parts

"""Assignment of samples to splits, and their order.

Knows: seeds, fractions, names of splits; keeps sequences whole. Does not know: the contents of samples,
files of the store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cotswold.data.preprocessing import AnyPreparation
from cotswold.data.sources.base import SampleSource, samples_noun
from cotswold.data.sources.checks import described, labels_of
from cotswold.data.sources.sequences import Integers, frames_of
from cotswold.data.store.manifest import SPLITS
from cotswold.errors import SourceError, UserError

Splits = Literal["auto", "random", "folders"]


@dataclass(frozen=True)
class Rule:
    """The rule that assigns the samples of a source to splits."""

    splits: Literal["random", "folders"]
    test_by_name: bool
    """True if samples named test stay in test while the others are drawn at random."""
    validation_by_name: bool
    """The same for samples named validation."""
    explanation: str
    """A sentence for users; empty if nothing in the source is named after a split."""


@dataclass(frozen=True)
class Request:
    """Everything that determines a store; equal requests give identical stores, bit by bit."""

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
    """See `Rule`; absent from the state of stores whose version mixed them."""
    validation_by_name: bool = False
    """See `Rule`."""

    def __post_init__(self) -> None:
        if self.splits not in ("random", "folders"):
            raise UserError(f"splits must be 'random' or 'folders', got {self.splits!r}")
        if min(self.validation, self.test) < 0 or self.validation + self.test >= 1:
            raise UserError(
                f"validation = {self.validation} and test = {self.test} leave no sample for training; "
                "give fractions whose sum is below 1"
            )
        if self.limit is not None and self.limit < 1:
            raise UserError(f"limit must be at least 1, got {self.limit}")

    def state(self) -> dict[str, Any]:
        """Return plain values for JSON."""
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
    """Resolve ``splits`` for a source.

    ``"auto"`` means ``"folders"`` if every sample lies in a folder or file named train, validation or test,
    with some in train and some elsewhere; otherwise ``"random"``. For any value, samples named test or
    validation are not drawn for training unless there are no others. Raises SourceError for an empty source.
    """
    if splits not in ("auto", "random", "folders"):
        raise UserError(f"splits must be 'auto', 'random' or 'folders', got {splits!r}")
    if not len(source):
        raise SourceError(f"{described(source)} is empty; give a source with samples")
    names = source.splits_of(_units(source))
    counts = {name: names.count(name) for name in SPLITS if name in names}
    told = " and ".join(f"{count:,} {name}" for name, count in counts.items())
    whole = None not in names and "train" in counts and len(counts) > 1
    if splits == "folders" or (splits == "auto" and whole):
        held = "" if "validation" in counts else "; validation is drawn from train"
        return Rule("folders", False, False, f"splits by the names of folders or files: {told}{held}")
    kept = _named_splits(names)
    if kept:
        counted = " and ".join(
            f"{counts[name]:,} of {len(names):,} {_noun(source)} are named {name}"
            for name in SPLITS
            if name in kept
        )
        why = f"splits at random, but {counted} and stay there"
    elif counts:
        only = next(iter(counts))
        why = f"splits at random: all {_noun(source)} are named {only}"
        if len(counts) > 1 or None in names:
            why = f"splits at random: nothing is named test or validation ({told})"
    else:
        why = ""
    return Rule("random", "test" in kept, "validation" in kept, why)


def _named_splits(names: Sequence[str | None]) -> set[str]:
    """Return which of test and validation keep their named samples in random splits.

    Both do if samples for training remain; else test does, if there are other samples.
    """
    found = set(names)
    if None in found or "train" in found:
        return {"test", "validation"} & {name for name in found if name is not None}
    return {"test"} & {name for name in found if name is not None} if len(found) > 1 else set()


def assign_splits(source: SampleSource, request: Request) -> dict[str, Integers]:
    """Return the samples of each non-empty split, permuted once. Raises SourceError.

    A sample named test or validation is in no other split unless no others are left for training.
    Fractions are drawn equally from each class. Sequences of frames are permuted and drawn as wholes, and
    ``limit`` counts sequences; the frames of a sequence stay together, in order.
    """
    units = _units(source)
    order = np.random.default_rng(request.seed).permutation(len(units))[: request.limit]
    if request.splits == "random":
        parts = _assign_randomly(source, units, order, request)
    else:
        parts = _by_name(source, units, order, request.validation)
    found = {name: parts[name] for name in SPLITS if len(parts[name])}
    lengths = source.lengths
    return found if lengths is None else {name: frames_of(part, lengths) for name, part in found.items()}


def _units(source: SampleSource) -> Integers:
    """Return the first sample of each unit that stays together: of each sequence, or every sample."""
    lengths = source.lengths
    return np.arange(len(source)) if lengths is None else np.cumsum(lengths) - lengths


def _noun(source: SampleSource) -> str:
    return samples_noun(source.kind) if source.lengths is None else "sequences"


def _assign_randomly(
    source: SampleSource, units: Integers, order: Integers, request: Request
) -> dict[str, Integers]:
    """Draw fractions of the samples that no name assigns; test also receives its named samples."""
    kept = _named_splits(source.splits_of(units))
    names = np.array([name if name in kept else "" for name in source.splits_of(units[order])])
    drawn = order[names == ""]
    if not len(drawn):
        raise SourceError(
            f"limit = {request.limit} leaves {_noun(source)} only for validation and test; increase it"
        )
    validation = order[names == "validation"]
    held = 0 if len(validation) else int(len(drawn) * request.validation)
    tested = int(len(drawn) * request.test)
    validated, left = _draw_samples(source, units, drawn, held)
    tests, left = _draw_samples(source, units, left, tested)
    return {
        "validation": np.concatenate([validated, validation]),
        "test": np.concatenate([tests, order[names == "test"]]),
        "train": left,
    }


def _draw_samples(
    source: SampleSource, units: Integers, order: Integers, count: int
) -> tuple[Integers, Integers]:
    """Split samples into ``count`` drawn ones and the others, each in their order.

    Without classes the first are drawn. With classes, each contributes its share, to within one sample. A
    class keeps at least one of the other samples, if enough remain.
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
    """Split by the names of folders or files; without validation, a fraction of train is used for it."""
    names = source.splits_of(units[order])
    if None in names:
        raise SourceError(
            f"{source.name(int(units[order[names.index(None)]]))} is in no folder or file named train, "
            'validation or test; exclude it or set splits = "random"'
        )
    words = np.array(names)
    parts = {name: order[words == name] for name in SPLITS}
    if not len(parts["train"]):
        raise SourceError(f'no folder or file named train contains {_noun(source)}; set splits = "random"')
    if not len(parts["validation"]):
        held = int(len(parts["train"]) * validation)
        parts["validation"], parts["train"] = _draw_samples(source, units, parts["train"], held)
    return parts

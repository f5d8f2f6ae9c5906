"""Which sample goes into which split, and in what order.

Knows: seeds, fractions, names of splits; that sequences are never torn. Does not know: what a
sample is, files of the store.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cotswold.data.asking import described
from cotswold.data.manifest import SPLITS
from cotswold.data.sequences import Integers, frames_of
from cotswold.data.source import SampleSource
from cotswold.data.transforms import AnyPreparation
from cotswold.errors import SourceError, UserError

Splits = Literal["auto", "random", "folders"]


@dataclass(frozen=True)
class Rule:
    """How samples are spread over splits, decided once for a source."""

    splits: Literal["random", "folders"]
    test_by_name: bool
    """Whether samples are drawn at random but for those that are called test, which stay there."""
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


def rule(source: SampleSource, splits: Splits) -> Rule:
    """What ``splits`` means for a source.

    ``"auto"``: ``"folders"`` where every sample lies in a folder or file that is called train, validation
    or test, and some in train and some elsewhere; otherwise ``"random"``. Whatever is asked for, no sample
    that is called test is drawn for training, unless all are. Raises SourceError for a source without any.
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
        return Rule("folders", False, f"splits by the names of folders or files: {told}{held}")
    if "test" not in counts:
        why = f"splits at random: nothing is called test ({told})" if counts else ""
        return Rule("random", False, why)
    if counts["test"] == len(names):
        return Rule("random", False, f"splits at random: all {_noun(source)} are called test")
    return Rule(
        "random",
        True,
        f"splits at random, but {counts['test']:,} of {len(names):,} {_noun(source)} are called test and "
        "stay there",
    )


def assigned(source: SampleSource, request: Request) -> dict[str, Integers]:
    """The samples of each split, permuted once; splits without any are left out. Raises SourceError.

    A sample that is called test is never in another split, unless all are. Of frames, whole sequences are
    permuted and drawn, and ``limit`` counts these; the frames of one stay together, in their order.
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
    """Fractions of what is not called test; the test split has a fraction, too, besides what is called so."""
    named = np.array([name == "test" for name in source.splits_of(units[order])], bool)
    if named.all():
        if set(source.splits_of(units)) != {"test"}:
            raise SourceError(f"a limit of {request.limit} leaves {_noun(source)} for testing only; raise it")
        named[:] = False
    drawn = order[~named]
    held, tested = int(len(drawn) * request.validation), int(len(drawn) * request.test)
    return {
        "validation": drawn[:held],
        "test": np.concatenate([drawn[held : held + tested], order[named]]),
        "train": drawn[held + tested :],
    }


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
        parts["validation"], parts["train"] = parts["train"][:held], parts["train"][held:]
    return parts

"""The plan of a set: class, face and degradation of every sample.

Knows: parts of a set, frequencies, the faces that draw a class. Does not know: images, files, processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cotswold.data.datasets.japanese_ocr import frequencies
from cotswold.data.datasets.japanese_ocr.characters import classes
from cotswold.data.datasets.japanese_ocr.families import Family
from cotswold.data.datasets.japanese_ocr.printing import UNSEEN, Degradation
from cotswold.errors import UserError

Part = Literal["originals", "validation", "degradations", "families"]
PARTS: tuple[Part, ...] = ("originals", "validation", "degradations", "families")
"""The originals of training samples; other scans of the same kind; scans with degradations that no original
has; scans of families that no original has.
"""
Frequencies = Literal["natural", "equal"]

_KINDS: tuple[Degradation, ...] = ("print", *UNSEEN)


@dataclass(frozen=True)
class Request:
    """Parameters of a set; equal requests with the same typefaces give identical sets, bit by bit.

    Args:
        seed: Seed of all random decisions, 0 to 2^63 - 1.
        originals: Number of scans from which training samples are made.
        held_out: Samples in each held-out part [the paper's number].
        samples: Training samples, including the originals [the paper's number].
        frequencies: "natural" or "equal" frequencies of the classes.
        held_families: Families excluded from training. [every fourth]

    Raises:
        UserError: if a value is out of range.
    """

    seed: int = 0
    originals: int = 168_000
    held_out: int = 6_320
    """Samples in each held-out part; the default is the paper's number."""
    samples: int = 9_264_000
    """Training samples, including the originals; the default is the paper's number."""
    frequencies: Frequencies = "natural"
    held_families: tuple[str, ...] = ()
    """Families excluded from training; if empty, every fourth."""

    def __post_init__(self) -> None:
        if self.seed < 0 or self.seed >= 1 << 63:
            raise UserError(f"seed must be in 0..2^63 - 1, got {self.seed}")
        if self.originals < len(classes()):
            raise UserError(
                f"{self.originals:,} originals are fewer than the {len(classes()):,} classes; give more"
            )
        if self.held_out < 1:
            raise UserError(f"held_out must be at least 1, got {self.held_out}")
        if self.samples < 1:
            raise UserError(f"samples must be at least 1, got {self.samples}")
        if self.frequencies not in ("natural", "equal"):
            raise UserError(f"frequencies must be 'natural' or 'equal', got {self.frequencies!r}")

    def state(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class PartPlan:
    """``labels``, ``faces`` and ``kinds`` of the samples (sample,); a face is a number among all families'
    faces.
    """

    part: Part
    labels: NDArray[np.uint16]
    faces: NDArray[np.uint16]
    kinds: tuple[Degradation, ...]
    """Degradations, assigned to the samples in rotation."""


@dataclass(frozen=True)
class DatasetPlan:
    """All parts, and the classes that cannot be printed."""

    parts: tuple[PartPlan, ...]
    untrained: tuple[str, ...]
    """Classes that no family for training draws."""
    untested_classes: tuple[str, ...]
    """Classes that no held-out family draws."""


def make_plan(
    request: Request, families: Sequence[Family], held: Sequence[str], ranking: frequencies.Ranking
) -> DatasetPlan:
    """Return the samples of every part."""
    training = _chances(families, [each.name not in held for each in families])
    testing = _chances(families, [each.name in held for each in families])
    if request.frequencies == "natural":
        counts = frequencies.natural(ranking.order, request.originals)
    else:
        counts = frequencies.equal(request.originals)
    counts[training.sum(1) == 0] = 0
    random = np.random.default_rng([request.seed, 0])
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    parts = [_part("originals", labels, training, _KINDS[:1], random)]
    for number, part in enumerate(PARTS[1:], 1):
        chances = testing if part == "families" else training
        drawn = frequencies.draw_classes(
            np.where(chances.sum(1) > 0, counts, 0), request.held_out, 2 * request.seed + number
        )
        random = np.random.default_rng([request.seed, number])
        parts.append(_part(part, drawn, chances, UNSEEN if part == "degradations" else _KINDS[:1], random))
    named = np.array(classes())
    return DatasetPlan(
        tuple(parts),
        tuple(named[training.sum(1) == 0].tolist()),
        tuple(named[testing.sum(1) == 0].tolist()),
    )


def _part(
    part: Part,
    labels: NDArray[np.int64],
    chances: NDArray[np.float64],
    kinds: tuple[Degradation, ...],
    random: np.random.Generator,
) -> PartPlan:
    """Draw a face for every sample: uniformly among families that draw the class, then among their faces."""
    below = np.cumsum(chances, 1)
    chance = random.random(len(labels)) * below[labels, -1]
    faces = (below[labels] <= chance[:, None]).sum(1)
    return PartPlan(part, labels.astype(np.uint16), faces.astype(np.uint16), kinds)


def _chances(families: Sequence[Family], chosen: Sequence[bool]) -> NDArray[np.float64]:
    """Return the probability of each face for a class, (class, face); rows sum to 1, or 0 if no face draws
    it.
    """
    columns = []
    for family, wanted in zip(families, chosen, strict=True):
        covers = family.drawn_glyphs.T.astype(np.float64) * wanted
        columns.append(covers / np.maximum(1, covers.sum(1, keepdims=True)))
    found: NDArray[np.float64] = np.concatenate(columns, 1)
    found /= np.maximum(found.sum(1, keepdims=True), 1e-300)
    return found

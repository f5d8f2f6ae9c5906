"""What is to be printed: for every sample its class, its face and its degradation.

Knows: parts of a set, frequencies, which face draws what. Does not know: pictures, files, processes.
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
"""What training patterns are made of; other scans of the same kind; scans with degradations that no original
has; scans of families that no original is of."""
Frequencies = Literal["natural", "equal"]

_KINDS: tuple[Degradation, ...] = ("print", *UNSEEN)


@dataclass(frozen=True)
class Request:
    """What set is wanted; two equal requests with the same typefaces give the same set, bit by bit."""

    seed: int = 0
    originals: int = 168_000
    held_out: int = 6_320
    """Samples of each held-out part; the paper's number."""
    patterns: int = 9_264_000
    """Training patterns, the originals among them; the paper's number."""
    frequencies: Frequencies = "natural"
    held_families: tuple[str, ...] = ()
    """Families that are never trained on; none for every fourth."""

    def __post_init__(self) -> None:
        if self.seed < 0 or self.seed >= 1 << 63:
            raise UserError(f"seed {self.seed} is not a whole number from 0 to 2^63 - 1")
        if self.originals < len(classes()):
            raise UserError(
                f"{self.originals:,} originals are fewer than the {len(classes()):,} classes; give more"
            )
        if self.held_out < 1:
            raise UserError(f"held-out parts of {self.held_out} samples test nothing; give 1 or more")
        if self.patterns < 1:
            raise UserError(f"{self.patterns} patterns train nothing; give 1 or more")
        if self.frequencies not in ("natural", "equal"):
            raise UserError(f"frequencies {self.frequencies!r} are neither 'natural' nor 'equal'")

    def state(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class PartPlan:
    """``labels``, ``faces``, ``kinds``: (sample,), the face a number among all faces of all families."""

    part: Part
    labels: NDArray[np.uint16]
    faces: NDArray[np.uint16]
    kinds: tuple[Degradation, ...]
    """Sample i is degraded as the i-th of these, over and over."""


@dataclass(frozen=True)
class Plan:
    """All parts, and the classes that cannot be printed."""

    parts: tuple[PartPlan, ...]
    untrained: tuple[str, ...]
    """Classes that no family of the training set draws."""
    untested: tuple[str, ...]
    """Classes that no family held out draws."""


def planned(
    request: Request, families: Sequence[Family], held: Sequence[str], ranking: frequencies.Ranking
) -> Plan:
    """The samples of every part."""
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
        drawn = frequencies.drawn(
            np.where(chances.sum(1) > 0, counts, 0), request.held_out, 2 * request.seed + number
        )
        random = np.random.default_rng([request.seed, number])
        parts.append(_part(part, drawn, chances, UNSEEN if part == "degradations" else _KINDS[:1], random))
    named = np.array(classes())
    return Plan(
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
    """A face for every sample: each family that draws the class is as likely, and each face of it."""
    below = np.cumsum(chances, 1)
    chance = random.random(len(labels)) * below[labels, -1]
    faces = (below[labels] <= chance[:, None]).sum(1)
    return PartPlan(part, labels.astype(np.uint16), faces.astype(np.uint16), kinds)


def _chances(families: Sequence[Family], chosen: Sequence[bool]) -> NDArray[np.float64]:
    """(class, face): how likely a face is for a class; rows sum to 1, or to 0 where no face draws it."""
    columns = []
    for family, wanted in zip(families, chosen, strict=True):
        covers = family.covers.T.astype(np.float64) * wanted
        columns.append(covers / np.maximum(1, covers.sum(1, keepdims=True)))
    found: NDArray[np.float64] = np.concatenate(columns, 1)
    found /= np.maximum(found.sum(1, keepdims=True), 1e-300)
    return found

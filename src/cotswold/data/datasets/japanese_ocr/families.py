"""Grouping of typefaces into families by their outlines.

Knows: the comparison of outlines, the classes that a family draws. Does not know: names (except the designs
to which faces belong), degradations.

Two designs are one family if at least a quarter of a sample of kanji have the same outline, regardless of the
size and position of the glyph in its body. IPA, IPAex and Takao are one family; so are M+, VL Gothic and
MigMix. On 35 designs of Debian the fraction is at least 0.60 inside a family and at most 0.02 between
families.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.datasets.japanese_ocr.characters import classes, groups
from cotswold.data.datasets.japanese_ocr.typefaces import Face, open_face, spelling

Outlines = NDArray[np.float32]

_COMPARED_GLYPHS = 48
_SIZE, _GRID = 96, 32
_SAME_OUTLINE = 0.12
"""Maximum difference of equal glyphs, each scaled to the same square, relative to their mean ink."""
_SAME_FAMILY = 0.25
_HELD_OUT_INTERVAL = 4


@dataclass(frozen=True)
class Family:
    """Designs that share outlines. ``drawn_glyphs`` is bool (face, class)."""

    name: str
    faces: tuple[Face, ...]
    drawn_glyphs: NDArray[np.bool_]

    @property
    def designs(self) -> tuple[str, ...]:
        """Names of the designs."""
        return tuple(dict.fromkeys(face.design for face in self.faces))

    @property
    def missing_classes(self) -> tuple[str, ...]:
        """Classes that no face of the family draws."""
        return tuple(np.array(classes())[~self.drawn_glyphs.any(0)].tolist())


def grouped(faces: Sequence[Face]) -> list[Family]:
    """Group faces into families, in the order of their first designs. Takes 0.3 s per face."""
    outlines = [_outlines(face) for face in faces]
    of = list(range(len(faces)))
    for i in range(len(faces)):
        for j in range(i):
            if faces[i].design == faces[j].design or similarity(outlines[i], outlines[j]) >= _SAME_FAMILY:
                first, second = sorted((of[i], of[j]))
                of = [first if each == second else each for each in of]
    found = []
    for number in sorted(set(of)):
        members = tuple(face for face, each in zip(faces, of, strict=True) if each == number)
        found.append(Family(members[0].design, members, np.stack([_covers(face) for face in members])))
    return found


def similarity(one: Outlines, other: Outlines) -> float:
    """Return the fraction of glyphs (glyph, y, x) with the same outline, among those drawn by both."""
    ink_one, ink_other = one.mean((1, 2)), other.mean((1, 2))
    both = (ink_one > 0) & (ink_other > 0)
    if not both.any():
        return 0.0
    difference = np.abs(one - other).mean((1, 2))[both] / ((ink_one + ink_other)[both] / 2)
    return float((difference < _SAME_OUTLINE).mean())


def held_out_families(families: Sequence[Family]) -> list[str]:
    """Return the families excluded from training: every fourth, and one of two or three."""
    every = min(_HELD_OUT_INTERVAL, len(families))
    return [each.name for each in families[every - 1 :: _HELD_OUT_INTERVAL]] if len(families) > 1 else []


def _outlines(face: Face) -> Outlines:
    """Return some kanji (glyph, y, x), each scaled to a square by its ink; zeros for missing ones."""
    font = open_face(face.file, _SIZE)
    kanji = groups()["kanji"]
    found = np.zeros((_COMPARED_GLYPHS, _GRID, _GRID), np.float32)
    for at, index in enumerate(np.linspace(0, len(kanji) - 1, _COMPARED_GLYPHS).astype(int).tolist()):
        if spelling(font, kanji[index]) is None:
            continue
        mask, _ = font.getmask2(kanji[index])
        glyph = Image.frombytes("L", mask.size, bytes(mask))
        square = glyph.crop(glyph.getbbox()).resize((_GRID, _GRID), Image.Resampling.BOX)
        found[at] = np.asarray(square, np.float32) / 255
    return found


def _covers(face: Face) -> NDArray[np.bool_]:
    font = open_face(face.file, 24)
    return np.array([spelling(font, each) is not None for each in classes()])

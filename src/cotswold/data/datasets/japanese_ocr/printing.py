"""Simulation of printing, scanning and cutting out a character: a binary image of 64 x 64.

Knows: the stages between a glyph and its scan, and their strengths. Does not know: the selection of
characters, 20 x 20, files.

The stages follow the physical order. The glyph is set (size, position, slant), ink spreads or fails, paper
and scanner rotate and blur, the scanner samples at its resolution and adds noise, and a threshold makes the
image binary. The paper's originals were binary images of varying resolution, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from cotswold.data.datasets.japanese_ocr.typefaces import Face, open_face, spelling

Bits = NDArray[np.uint64]
"""Rows of an image, (..., 64): the leftmost pixel is the highest bit; 1 is ink."""
Degradation = Literal["print", "fax", "photocopy", "streaks", "bent"]

SIDE = 64
UNSEEN: tuple[Degradation, ...] = ("fax", "photocopy", "streaks", "bent")
"""Degradations that no training sample has."""

_EM, _CANVAS = 80, 112
"""Size in pixels of the glyph's body, and of its sheet."""
_BODY = 0.87
"""Size of the body, as a fraction of the image's side, before it is scaled."""


@dataclass(frozen=True)
class Strengths:
    """Maximum strength of each stage; each sample draws its own."""

    slant_degrees: float = 1.8
    size: float = 0.06
    """Relative, each axis independently."""
    shift: float = 0.035
    """Fraction of the side of the image, each axis."""
    blur_radius: tuple[float, float] = (0.5, 1.7)
    """Radius of the ink's blur, pixels of an em of 80."""
    darkness: tuple[float, float] = (0.26, 0.58)
    """Threshold between paper and the darkest ink; a low one prints bold."""
    resolution: tuple[int, int] = (22, 60)
    """Pixels of the scanner across the image: 10 points at 200 to 400 dots per inch, and smaller."""
    noise: float = 0.16
    """Maximum deviation of the scanner's noise; ink is 1."""
    uneven_inking: float = 0.22
    """Maximum unevenness of inking across a character."""
    specks: float = 1.6
    """Expected specks per image, of dirt and of lost ink."""


def print_scan(face: Face, character: str, kind: Degradation, random: np.random.Generator) -> Bits:
    """Return one scan, (64,) rows; ``random`` decides everything except ``kind``.

    A scan that lost all its ink is repeated without noise.
    """
    bits = _scan(face, character, kind, random, Strengths())
    if not bits.any():
        bits = _scan(face, character, "print", random, Strengths(noise=0, uneven_inking=0, specks=0))
    return bits


def print_clean(face: Face, character: str) -> Bits:
    """Return the glyph without degradation, (64,) rows, for viewing typefaces."""
    still = Strengths(0, 0, 0, (0.5, 0.5), (0.5, 0.5), (SIDE, SIDE), 0, 0, 0)
    return _scan(face, character, "print", np.random.default_rng(0), still)


def packed(ink: NDArray[np.bool_]) -> Bits:
    """Pack pixels (..., 64, 64) to rows of bits (..., 64)."""
    rows: Bits = np.packbits(ink, axis=-1).view(">u8")[..., 0].astype(np.uint64)
    return rows


def unpacked(bits: Bits) -> NDArray[np.uint8]:
    """Unpack rows of bits (..., 64) to pixels (..., 64, 64), 0 or 1."""
    return np.unpackbits(bits.astype(">u8")[..., None].view(np.uint8), axis=-1)


def _scan(
    face: Face, character: str, kind: Degradation, random: np.random.Generator, most: Strengths
) -> Bits:
    sheet = _set(face, character).filter(ImageFilter.GaussianBlur(random.uniform(*most.blur_radius)))
    low, high = most.resolution
    side = int(random.integers(low, high, endpoint=True))
    across, down = (side, max(12, side // 2)) if kind == "fax" else (side, side)
    grey = _sampled(sheet, (across, down), random, most)
    if kind == "bent":
        grey = _bend(grey, random)
    if kind == "photocopy":
        grey = _copied(grey, random)
    ink = _thresholded(grey, random, most)
    if kind == "streaks":
        ink = _add_streaks(ink, random)
    rows, columns = (np.arange(SIDE) * down) // SIDE, (np.arange(SIDE) * across) // SIDE
    return packed(ink[rows[:, None], columns[None]])


def _set(face: Face, character: str) -> Image.Image:
    """Centre the glyph on a sheet by its body instead of its ink, so that small kana and signs keep their
    place.
    """
    font = open_face(face.file, _EM)
    text = spelling(font, character)
    assert text is not None, f"{face.name} does not draw {character}"
    sheet = Image.new("L", (_CANVAS, _CANVAS))
    left = (_CANVAS - font.getlength(text)) / 2
    ascent, descent = font.getmetrics()
    top = _CANVAS / 2 - _middle(font.size, ascent, descent)
    ImageDraw.Draw(sheet).text((left, top), text, fill=255, font=font, anchor="la")
    return sheet


def _middle(em: float, ascent: int, descent: int) -> float:
    """Return the centre of the body below the ascender's line: 0.38 em above the baseline, for any line
    gap.
    """
    return ascent - 0.38 * em if ascent + descent else em / 2


def _sampled(
    sheet: Image.Image, size: tuple[int, int], random: np.random.Generator, most: Strengths
) -> NDArray[np.float32]:
    """Return the sheet sampled on the scanner's grid, (y, x), ink 1."""
    width, height = size
    angle = np.deg2rad(random.uniform(-most.slant_degrees, most.slant_degrees))
    shear = np.deg2rad(random.uniform(-most.slant_degrees, most.slant_degrees))
    per_side = _EM / _BODY
    scale_x, scale_y = per_side / (1 + random.uniform(-most.size, most.size, 2))
    shift_x, shift_y = random.uniform(-most.shift, most.shift, 2)
    turn = np.array([[np.cos(angle), np.sin(angle + shear)], [-np.sin(angle), np.cos(angle)]])
    matrix = turn * np.array([scale_x / width, scale_y / height])
    centre = np.array([_CANVAS / 2, _CANVAS / 2])
    offset = centre - matrix @ np.array([width * (0.5 + shift_x), height * (0.5 + shift_y)])
    # the reduction is up to fourfold: details finer than the grid are blurred first, as by a lens
    softened = sheet.filter(ImageFilter.BoxBlur(max(0.0, per_side / width - 1) / 2))
    coefficients = (*matrix[0], offset[0], *matrix[1], offset[1])
    grid = softened.transform(
        size, Image.Transform.AFFINE, tuple(map(float, coefficients)), Image.Resampling.BILINEAR
    )
    return _levels(grid)


def _levels(image: Image.Image) -> NDArray[np.float32]:
    """Return grey levels from 0 to 1, (y, x)."""
    levels: NDArray[np.float32] = np.asarray(image, np.float32) / np.float32(255)
    return levels


def _thresholded(
    grey: NDArray[np.float32], random: np.random.Generator, most: Strengths
) -> NDArray[np.bool_]:
    """Apply noise, uneven ink, the threshold, and specks."""
    height, width = grey.shape
    slope_y, slope_x, level = random.uniform(-most.uneven_inking, most.uneven_inking, 3) / np.array([1, 1, 2])
    fading = 1 + slope_y * np.linspace(-1, 1, height)[:, None] + slope_x * np.linspace(-1, 1, width) + level
    noise = random.normal(0, 1, grey.shape) * (most.noise * random.random() ** 2)
    ink: NDArray[np.bool_] = grey * fading + noise > random.uniform(*most.darkness) * _darkest(grey)
    for _ in range(int(random.poisson(most.specks * random.random()))):
        y, x = int(random.integers(height)), int(random.integers(width))
        tall, wide = random.integers(1, 3, 2)
        ink[y : y + tall, x : x + wide] = random.random() < 0.6
    return ink


def _darkest(grey: NDArray[np.float32]) -> float:
    """Return the mean of the darkest hundredth: light prints are scanned darker to preserve their lines."""
    most = max(1, grey.size // 100)
    return float(np.partition(grey, -most, axis=None)[-most:].mean())


def _copied(grey: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """Simulate a copy of copies: each time binary, then blurred."""
    for _ in range(int(random.integers(2, 4))):
        black = Image.fromarray(np.uint8(255 * (grey > random.uniform(0.3, 0.55) * _darkest(grey))))
        grey = _levels(black.filter(ImageFilter.GaussianBlur(random.uniform(0.6, 1.1))))
    return grey


def _add_streaks(ink: NDArray[np.bool_], random: np.random.Generator) -> NDArray[np.bool_]:
    """Add lost or black scanner lines, and an edge of a neighbouring character or rule."""
    height, width = ink.shape
    for _ in range(int(random.integers(1, 4))):
        if random.random() < 0.5:
            ink[int(random.integers(height))] = False
        else:
            ink[:, int(random.integers(width))] = False
    if random.random() < 0.5:
        edge = int(random.integers(1, max(2, height // 16)))
        if random.random() < 0.5:
            ink[-edge:] = True
        else:
            ink[:, :edge] = random.random((height, edge)) < 0.5
    return ink


def _bend(grey: NDArray[np.float32], random: np.random.Generator) -> NDArray[np.float32]:
    """Simulate curled paper: rows are shifted along a wave, and the whole is rotated by up to 6 degrees."""
    height, width = grey.shape
    angle = random.uniform(2.5, 6.0) * random.choice([-1, 1])
    turned = Image.fromarray(np.uint8(grey * 255)).rotate(angle, Image.Resampling.BILINEAR)
    grey = _levels(turned)
    phase, waves = random.uniform(0, 2 * np.pi), random.uniform(0.5, 1.2)
    depth = random.uniform(0.03, 0.07) * width
    along = np.sin(phase + 2 * np.pi * waves * np.arange(height) / height)
    shifts = np.rint(depth * along).astype(np.int64)
    columns = np.arange(width)[None] - shifts[:, None]
    inside = (columns >= 0) & (columns < width)
    moved: NDArray[np.float32] = np.where(
        inside, np.take_along_axis(grey, np.clip(columns, 0, width - 1), 1), np.float32(0)
    )
    return moved

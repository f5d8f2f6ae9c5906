"""Images and recipes small enough that a whole run takes a fraction of a second.

Knows: folders of drawn images, recipes on them. Does not know: the tests.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16
STACKS = """
[[network.stacks]]
kernel_size = 6
stride = 2
block = [2, 2]
channels = 3
pool = 3
norm = 3
pool_padding = "same"

[[network.stacks]]
kernel_size = 4
stride = 2
block = [2, 2]
channels = 2
pool = 1
norm = 3
pool_padding = "same"
"""
LAYERS = """
[[network.layers]]
type = "convolution"
channels = 4
kernel_size = 3

[[network.layers]]
type = "normalisation"

[[network.layers]]
type = "relu"

[[network.layers]]
type = "dropout"

[[network.layers]]
type = "local"
channels = 3
kernel_size = 4
stride = 2
"""


def stripes(seed: int, level: bool, side: int = 20) -> NDArray[np.uint8]:
    """Return a noisy image of stripes, (y, x, channel); level and upright ones are the two classes."""
    random = np.random.default_rng(seed)
    waves = np.sin(np.arange(side) * random.uniform(0.8, 1.2) + random.uniform(0, 6))
    plane = np.repeat(waves[:, None] if level else waves[None, :], side, axis=1 if level else 0)
    noisy = plane[:, :, None] * random.uniform(0.6, 1, 3) + 0.3 * random.standard_normal((side, side, 3))
    pixels: NDArray[np.uint8] = np.clip(128 + 60 * noisy, 0, 255).astype(np.uint8)
    return pixels


def draw(folder: Path, count: int, *, level: bool, first: int = 0, ending: str = "png") -> None:
    """Write images of one class."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        Image.fromarray(stripes(number, level)).save(folder / f"{number:03d}.{ending}")


def draw_labelled(folder: Path, count: int, first: int = 0) -> None:
    """Write two folders of images, one PNG, one JPEG, named after their classes."""
    draw(folder / "level", count, level=True, first=first)
    draw(folder / "upright", count, level=False, first=first + 1000, ending="jpg")


def greedy(source: Path, *, strategy: str = "greedy", more: str = "") -> str:
    """Return a recipe of two stacks: 2 x 14 steps on 48 images."""
    return f"""
name = "small"
data = {{ source = "{source}", size = {SIDE}, validation = 0.2 }}
{STACKS}
[training]
strategy = "{strategy}"
batch_size = 8
epochs = 2.4
threads = 1
{more}
"""


def supervised(
    source: Path, *, layers: str = LAYERS, network: str = "", data: str = "", more: str = ""
) -> str:
    """Return a recipe of layers on labelled images, with batch normalisation and dropout."""
    return f"""
name = "small"
[data]
source = "{source}"
labels = "folders"
size = {SIDE}
whiten = false
{data or "validation = 0.2"}
[network]
{network}
{layers}
[training]
strategy = "supervised"
batch_size = 8
epochs = 4
threads = 1
{more}
"""

"""Contact sheets: images that show the set.

Knows: the selection of samples, rows and columns. Does not know: the making of a set, reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.datasets.japanese_ocr import japanese_source
from cotswold.data.datasets.japanese_ocr.printing import SIDE, unpacked
from cotswold.data.datasets.japanese_ocr.samples import GRID, GreySamples, downscale, generate_samples
from cotswold.files import real_folder, writing_whole

FOLDER = "sheets"
_COLUMNS, _ROWS = 40, 24
_VARIANTS = 14


def contact_sheet(samples: GreySamples, columns: int = _COLUMNS, scale: int = 2) -> Image.Image:
    """Arrange samples, uint8 (n, 400), 255 is ink, in rows; black on white, enlarged ``scale`` times."""
    side = round(samples.shape[1] ** 0.5)
    return _sheet(samples.reshape(-1, side, side), columns, scale)


def write(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write the sheets of a set whose arrays are in a folder: scans and samples of each part."""
    real_folder(folder / FOLDER)
    for name, image in _sheets(folder, manifest).items():
        with writing_whole(folder / FOLDER / f"{name}.png") as file:
            image.save(file, "PNG")


def sheets_of(source: str) -> Mapping[str, Path]:
    """Return the files of the sheets, by name, for a source that is such a set; empty for other sources."""
    if not japanese_source.is_set(source):
        return {}
    return {path.stem: path for path in (japanese_source.folder_of(source) / FOLDER).glob("*.png")}


def _sheets(folder: Path, manifest: Mapping[str, Any]) -> dict[str, Image.Image]:
    def scans(part: str) -> NDArray[np.uint64]:
        found: NDArray[np.uint64] = np.load(folder / f"{part}.scans.npy", mmap_mode="r", allow_pickle=False)
        return found

    shown = _COLUMNS * _ROWS
    originals = scans("originals")
    some = min(_COLUMNS, len(originals))
    variants = np.arange(some) + len(originals) * np.arange(_VARIANTS)[:, None]
    found = {
        f"{part}-samples": contact_sheet(downscale(scans(part)[:shown]))
        for part in ("originals", "validation", "degradations", "families")
    }
    found["originals-scans"] = _sheet(255 * unpacked(originals[: shown // 4]), _COLUMNS // 2, 1)
    seed = int(manifest["request"]["seed"])
    found["transformed"] = contact_sheet(generate_samples(originals, variants.reshape(-1), seed), some)
    found["faces"] = _by_face(folder, manifest["families"])
    return found


def _by_face(folder: Path, families: Sequence[Mapping[str, Any]]) -> Image.Image:
    """Return a row of scans for each used face, in the order of the families."""
    faces = sum(len(family["faces"]) for family in families)
    rows = np.zeros((faces, _COLUMNS // 2, SIDE, SIDE), np.uint8)
    for part in ("originals", "families"):
        used = np.load(folder / f"{part}.faces.npy", allow_pickle=False)
        scans = np.load(folder / f"{part}.scans.npy", mmap_mode="r", allow_pickle=False)
        for face in np.unique(used).tolist():
            some = np.flatnonzero(used == face)[: _COLUMNS // 2]
            rows[face, : len(some)] = 255 * unpacked(scans[some])
    return _sheet(rows.reshape(-1, SIDE, SIDE), _COLUMNS // 2, 1)


def _sheet(samples: NDArray[np.uint8], columns: int, scale: int) -> Image.Image:
    side, gap = samples.shape[1], max(1, samples.shape[1] // GRID)
    rows = -(-len(samples) // columns)
    cells = np.zeros((rows * columns, side + gap, side + gap), np.uint8)
    cells[: len(samples), :side, :side] = samples
    page = cells.reshape(rows, columns, side + gap, side + gap).transpose(0, 2, 1, 3)
    image = Image.fromarray(255 - page.reshape(rows * (side + gap), columns * (side + gap)))
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)

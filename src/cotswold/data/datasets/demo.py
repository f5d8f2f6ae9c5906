"""Built-in datasets, cropped from photographs that are shipped with scikit-image and scikit-learn.

Knows: the photographs, the drawing of crops. Does not know: stores. Nothing is downloaded: files are read by
their paths inside the installed packages.

``builtin:demo`` is unlabelled: crops of photographs at several scales, some mirrored, and, about one in
eight, faces (25 x 25 pixels, enlarged and cropped slightly differently each time). ``builtin:demo-faces`` and
``builtin:demo-distractors`` are tests: faces of other people, and patches of the same size and kind without
faces, half of them from photographs that the demo does not contain.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cotswold.data.formats.image import open_image
from cotswold.data.sources.base import UNLABELLED, Source, hashed
from cotswold.data.sources.contents import digests
from cotswold.data.sources.file_names import Labels, chosen
from cotswold.errors import MachineError, MissingExtraError, SourceError, UnlabelledError, UserError, install
from cotswold.files import PARTIAL, disk_errors, expanded, writing_whole

_PHOTOGRAPHS = (
    ("skimage", "data/astronaut.png"),
    ("skimage", "data/coffee.png"),
    ("skimage", "data/chelsea.png"),
    ("skimage", "data/rocket.jpg"),
    ("skimage", "data/motorcycle_left.png"),
    ("skimage", "data/hubble_deep_field.jpg"),
    ("skimage", "data/retina.jpg"),
    ("skimage", "data/ihc.png"),
    ("sklearn", "datasets/images/china.jpg"),
)
"""Photographs of the demo."""
_DISTRACTORS = (
    ("sklearn", "datasets/images/flower.jpg"),
    ("skimage", "data/camera.png"),
    ("skimage", "data/coins.png"),
    ("skimage", "data/grass.png"),
    ("skimage", "data/brick.png"),
    ("skimage", "data/gravel.png"),
    ("skimage", "data/moon.png"),
)
"""Photographs of the distractors."""
_PATCHES = ("skimage", "data/lfw_subset.npy")
"""200 grey patches of 25 x 25 pixels: 100 faces, then 100 others."""
_FACES, _HALF, _PATCH = 100, 50, 25
_CROPS, _FACE_CROPS, _OTHER_CROPS, _DISTRACTOR_CROPS = 4200, 600, 200, 100
_SHORTEST, _LONGEST = 64, 400
"""Range of sides of the square crops, in pixels of the photograph."""
_ENLARGED_SIDE = 96
"""Side to which patches are enlarged."""


@dataclass(frozen=True)
class _Crop:
    """A square of a photograph or patch, possibly mirrored."""

    name: str
    file: tuple[str, str]
    patch: int | None
    box: tuple[float, float, float, float]
    side: int | None
    """Side in pixels to which the square is scaled; None to keep its size."""
    mirrored: bool
    grey: bool = False


class CropSource(Source):
    """Crops, ordered by name."""

    def __init__(self, name: str, crops: list[_Crop]) -> None:
        self._crops = crops
        self._photographs: dict[tuple[str, str], Image.Image] = {}
        self._patches: NDArray[np.uint8] | None = None
        self._name = name

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_photographs": {}, "_patches": None}

    def __len__(self) -> int:
        return len(self._crops)

    def name(self, index: int) -> str:
        """Return the name of the photograph and the number of the crop."""
        return self._crops[index].name

    def read(self, index: int) -> Image.Image:
        """Return the crop."""
        crop = self._crops[index]
        image = self._photograph(crop.file) if crop.patch is None else self._patch(crop.patch)
        if crop.grey:
            image = image.convert("L")
        side = crop.side or round(crop.box[2] - crop.box[0])
        cut = image.resize((side, side), Image.Resampling.BICUBIC, box=crop.box)
        if crop.grey and crop.side is not None and crop.patch is None:
            cut = cut.resize((_ENLARGED_SIDE, _ENLARGED_SIDE), Image.Resampling.BICUBIC)
        return cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if crop.mirrored else cut

    def label(self, index: int) -> int:
        """Return -1: crops are unlabelled."""
        return UNLABELLED

    def split_of(self, index: int) -> str | None:
        """Return None: crops belong to no split."""
        return None

    @cached_property
    def identity(self) -> str:
        """A hash of all crops and of their photographs."""
        places = [_package_file(*file) for file in sorted({crop.file for crop in self._crops})]
        read = [digests(place, place.parent, [place.name]) for place in places]
        return hashed([self._name, *self._crops, *read])

    def _photograph(self, file: tuple[str, str]) -> Image.Image:
        if file not in self._photographs:
            self._photographs[file] = open_image(file[1], _package_file(*file)).convert("RGB")
        return self._photographs[file]

    def _patch(self, index: int) -> Image.Image:
        if self._patches is None:
            values = np.load(_package_file(*_PATCHES), allow_pickle=False)
            self._patches = np.rint(np.clip(values, 0, 1) * 255).astype(np.uint8)
        return Image.fromarray(self._patches[index])


def open_builtin(name: str, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    """Open a built-in dataset.

    Raises SourceError for an unknown name and MissingExtraError without the packages.
    """
    if name not in BUILTIN:
        raise SourceError(f"{name} is not a built-in data set; choose from {', '.join(BUILTIN)}")
    if labels != "none":
        raise UnlabelledError(f"{name} contains no labels", "give a source that does,")
    crops = sorted(BUILTIN[name](), key=lambda crop: crop.name)
    kept = chosen([crop.name for crop in crops], include, exclude, name)
    return CropSource(name, [crops[index] for index in kept])


def write_demo(out: str | Path, progress: Callable[[int, int], None] | None = None) -> dict[str, int]:
    """Write the built-in datasets as PNG files into folders of ``out``.

    A killed call is completed by the next one.

    Args:
        out: A new or empty directory, or one of an interrupted call.
        progress: Called with the number of images written and the total.

    Returns:
        The number of images in each dataset.

    Raises:
        UserError: if ``out`` is complete or contains other files.
        MachineError: if the disk is full or cannot be written.
    """
    root = expanded(out)
    sources = {name.removeprefix("builtin:"): open_builtin(name, (), (), "none") for name in BUILTIN}
    wanted = {
        root / name / f"{source.name(index)}.png": (source, index)
        for name, source in sources.items()
        for index in range(len(source))
    }
    there = {path for path in (root, *root.rglob("*")) if path.exists() and not path.is_dir()}
    begun = {path for path in there if path.name.endswith(PARTIAL) and _final_path(path) in wanted}
    if there and (there >= set(wanted) or not there - begun <= set(wanted)):
        raise UserError(f"{root} already exists; give a new or empty directory")
    for done, (path, (source, index)) in enumerate(wanted.items(), 1):
        if path not in there:
            path.parent.mkdir(parents=True, exist_ok=True)
            with disk_errors(path, MachineError), writing_whole(path) as file:
                source.read(index).save(file, "PNG")
        if progress is not None:
            progress(done, len(wanted))
    for path in begun:
        path.unlink(missing_ok=True)
    return {name: len(source) for name, source in sources.items()}


def _final_path(partial: Path) -> Path:
    """Return the whole file of a partial one: `a.png` of `a.png.123.partial`."""
    return partial.with_name(partial.name[: partial.name.index(".png") + len(".png")])


def _demo() -> list[_Crop]:
    random = np.random.default_rng(0)
    photographs = [
        _photograph_crop(random, _PHOTOGRAPHS[number % len(_PHOTOGRAPHS)], number) for number in range(_CROPS)
    ]
    faces = [_patch_crop(random, "face", number % _HALF, number) for number in range(_FACE_CROPS)]
    others = [_patch_crop(random, "patch", _FACES + number % _HALF, number) for number in range(_OTHER_CROPS)]
    return photographs + faces + others


def _demo_faces() -> list[_Crop]:
    return [_whole_patch("face", index) for index in range(_HALF, _FACES)]


def _demo_distractors() -> list[_Crop]:
    random = np.random.default_rng(1)
    patches = [_whole_patch("patch", index) for index in range(_FACES + _HALF, 2 * _FACES)]
    cut = []
    for number in range(_DISTRACTOR_CROPS):
        crop = _photograph_crop(random, _DISTRACTORS[number % len(_DISTRACTORS)], number)
        cut.append(_Crop(crop.name, crop.file, None, crop.box, _PATCH, crop.mirrored, grey=True))
    return patches + cut


BUILTIN: dict[str, Callable[[], list[_Crop]]] = {
    "builtin:demo": _demo,
    "builtin:demo-faces": _demo_faces,
    "builtin:demo-distractors": _demo_distractors,
}
"""The built-in datasets."""


def _photograph_crop(random: np.random.Generator, file: tuple[str, str], number: int) -> _Crop:
    """Draw a square; sides are uniform on a logarithmic scale."""
    width, height = _size(file)
    longest = min(width, height, _LONGEST)
    side = int(_SHORTEST * (longest / _SHORTEST) ** random.random())
    left, top = int(random.integers(width - side + 1)), int(random.integers(height - side + 1))
    name = f"{Path(file[1]).stem}/{number:04d}-{side}px"
    return _Crop(name, file, None, (left, top, left + side, top + side), None, bool(random.integers(2)))


@lru_cache
def _size(file: tuple[str, str]) -> tuple[int, int]:
    """Return width and height of a photograph."""
    with open_image(file[1], _package_file(*file)) as image:
        return image.size


def _patch_crop(random: np.random.Generator, kind: str, index: int, number: int) -> _Crop:
    """Draw most of a patch, slightly shifted and scaled."""
    side = _PATCH * random.uniform(0.86, 1)
    left, top = random.uniform(0, _PATCH - side, 2).tolist()
    box = (left, top, left + side, top + side)
    return _Crop(
        f"{kind}/{index:03d}-{number:04d}", _PATCHES, index, box, _ENLARGED_SIDE, bool(random.integers(2))
    )


def _whole_patch(kind: str, index: int) -> _Crop:
    return _Crop(f"{kind}/{index:03d}", _PATCHES, index, (0, 0, _PATCH, _PATCH), _ENLARGED_SIDE, False)


def _package_file(package: str, file: str) -> Path:
    """Return the path of a file inside an installed package without importing it. Raises
    MissingExtraError.
    """
    found = importlib.util.find_spec(package)
    for place in (found.submodule_search_locations or []) if found else []:
        if (Path(place) / file).exists():
            return Path(place) / file
    raise MissingExtraError(
        f"the built-in images need {package}/{file}, which ships inside scikit-image and scikit-learn; "
        f"run {install('demo')}"
    )

"""Images with the relevant properties of photographs: a steep spectrum and correlated colours."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

from cotswold.data import Preparation, Source, Store, open_source, prepare
from cotswold.data.sources.base import SampleSource

KILLED = """
import os, signal, sys
from cotswold.data.store import layout as store_layout
store_layout._SHARD_IMAGES_MAX = 16
import cotswold.data.store.journal as journal
from cotswold.data import Preparation, open_source, prepare
added = journal.Journal.add
left = int(sys.argv[3])
def add(self, *what):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    added(self, *what)
journal.Journal.add = add
prepare(open_source(sys.argv[1]), sys.argv[2], Preparation((16, 20)), jobs=1)
"""
"""Prepares a store, and kills itself before it has journalled a number of shards."""


@lru_cache(maxsize=2000)
def photograph(seed: int, height: int = 40, width: int = 52) -> NDArray[np.uint8]:
    random = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(2 * height)[:, None], np.fft.fftfreq(2 * width)[None, :])
    noise = np.fft.fft2(random.standard_normal((3, 2 * height, 2 * width)))
    planes = np.fft.ifft2(noise / np.maximum(frequency, 0.01)).real[:, :height, :width]
    mixed = np.tensordot([[1, 0.2, 0.1], [1, 0, -0.1], [1, -0.3, 0.1]], planes, 1)
    mixed = (mixed - mixed.mean()) / mixed.std()
    pixels: NDArray[np.uint8] = np.clip(mixed * 45 + 128, 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return pixels


def write_photographs(folder: Path, count: int, first: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        Image.fromarray(photograph(number)).save(folder / f"{number:04d}.png")


class Named(SampleSource):
    """A source with names and splits only."""

    kind = "images"
    identity = ""

    def __init__(self, splits: Sequence[str | None]) -> None:
        self._splits = splits

    def __len__(self) -> int:
        return len(self._splits)

    def name(self, index: int) -> str:
        return f"image {index}"

    def label(self, index: int) -> int:
        return -1

    def split_of(self, index: int) -> str | None:
        return self._splits[index]


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def files(store: Path) -> dict[str, bytes]:
    return {p.relative_to(store).as_posix(): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}


@pytest.fixture
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 16)


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder of 300 photographs in two sub-folders."""
    root = tmp_path_factory.mktemp("photographs")
    write_photographs(root / "hills", 150)
    write_photographs(root / "lakes", 150, first=150)
    return root


@pytest.fixture(scope="session")
def store(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Make a whitened, labelled store of 24 x 32 pixels: 210 for training, 60 for validation, 30
    for testing.
    """
    path = tmp_path_factory.mktemp("stores") / "store"
    source = open_source(photographs, labels="folders")
    prepare(source, path, Preparation((24, 32)), validation=0.2, test=0.1, jobs=1)
    return Store(path)


@pytest.fixture
def plain_store(tmp_path: Path) -> Callable[..., Store]:
    """Return a function that makes a store of numbered images: every value of image i is i / 255."""

    def make(images: int, size: tuple[int, int] = (4, 6), shard: int | None = None) -> Store:
        numbered = np.broadcast_to(np.arange(images, dtype=np.uint8)[:, None, None], (images, *size))
        np.save(tmp_path / "numbered.npy", numbered)
        source: Source = open_source(tmp_path / "numbered.npy")
        plain = Preparation(size, colour="grey", per_image_standardise=False, whiten=False, dtype="uint8")
        prepare(source, tmp_path / "numbered", plain, validation=0, jobs=1)
        return Store(tmp_path / "numbered")

    return make


@pytest.fixture
def bytes_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the bytes of each read of any array."""
    real, found = LocalStore.get, list[int]()

    async def counted(self: LocalStore, *arguments: Any, **named: Any) -> Buffer | None:
        buffer = await real(self, *arguments, **named)
        found.append(0 if buffer is None else len(buffer))
        return buffer

    monkeypatch.setattr(LocalStore, "get", counted)
    return found

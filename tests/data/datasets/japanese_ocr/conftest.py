"""A small set of Japanese print of four designs, made once; skipped if the typefaces are not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pytest

from cotswold.data.datasets.japanese_ocr import JapaneseSet, Request, families, frequencies, make, typefaces
from cotswold.data.datasets.japanese_ocr.families import Family
from cotswold.data.datasets.japanese_ocr.typefaces import Face

FEW = ("IPA Gothic", "Noto Serif CJK", "IPA Mincho", "Takao Gothic")
"""Three families: Takao Gothic has the outlines of IPA Gothic. The third is held out."""
SMALL = Request(seed=7, originals=3500, held_out=60, samples=9000)


@contextmanager
def few() -> Iterator[None]:
    """Pretend that only four designs are installed."""
    missing = {each.name for each in typefaces.installed()[1]} & set(FEW)
    if missing:
        pytest.skip(f"typefaces are not installed: {', '.join(sorted(missing))}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typefaces, "DESIGNS", tuple(each for each in typefaces.DESIGNS if each.name in FEW))
        patch.setattr(families, "grouped", _grouped)
        patch.setattr(frequencies, "KANJIDIC", Path("none"))
        patch.setattr(frequencies, "TEXTS", Path("none"))
        yield


@pytest.fixture(scope="module")
def few_designs() -> Iterator[None]:
    with few():
        yield


@lru_cache
def _grouped(faces: tuple[Face, ...], by: Callable[..., list[Family]] = families.grouped) -> list[Family]:
    """Group the families once: grouping takes longer than printing a small set."""
    return by(faces)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> JapaneseSet:
    with few():
        return make(tmp_path_factory.mktemp("ocr") / "set", SMALL, jobs=1)


@pytest.fixture
def copied(made: JapaneseSet, tmp_path: Path) -> Path:
    """Return a copy that may be damaged."""
    for path in made.path.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path

"""A small set of Japanese print, made once, of four designs; skipped where they are not installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import pytest

from cotswold.data.ocr import JapaneseSet, Request, families, frequencies, make, typefaces
from cotswold.data.ocr.families import Family
from cotswold.data.ocr.typefaces import Face

FEW = ("IPA Gothic", "Noto Serif CJK", "IPA Mincho", "Takao Gothic")
"""Three families: Takao Gothic has the outlines of IPA Gothic. The third is held out."""
SMALL = Request(seed=7, originals=3500, held_out=60, patterns=9000)


@pytest.fixture(scope="module")
def few_designs() -> Iterator[None]:
    missing = {each.name for each in typefaces.installed()[1]} & set(FEW)
    if missing:
        pytest.skip(f"typefaces are not installed: {', '.join(sorted(missing))}")
    with pytest.MonkeyPatch.context() as patch:
        few = tuple(each for each in typefaces.DESIGNS if each.name in FEW)
        patch.setattr(typefaces, "DESIGNS", few)
        patch.setattr(families, "grouped", lru_cache(_by(families.grouped)))
        patch.setattr(frequencies, "KANJIDIC", Path("none"))
        patch.setattr(frequencies, "TEXTS", Path("none"))
        yield


def _by(grouped: Callable[[Sequence[Face]], list[Family]]) -> Callable[..., list[Family]]:
    return lambda faces: grouped(faces)


@pytest.fixture(scope="module")
def made(few_designs: None, tmp_path_factory: pytest.TempPathFactory) -> JapaneseSet:
    return make(tmp_path_factory.mktemp("ocr") / "set", SMALL, jobs=1)


@pytest.fixture
def copied(made: JapaneseSet, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    for path in made.path.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path

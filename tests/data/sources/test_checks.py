"""Mistakes in a source of another package are reported with the names of the source and the sample."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from cotswold.data import (
    BrokenImageError,
    Preparation,
    Source,
    Transform,
    VectorPreparation,
    VectorSource,
    open_source,
    prepare,
    stream,
)
from cotswold.data.sources.labels import LabelArray
from cotswold.data.sources.vectors import VectorArray
from cotswold.errors import SourceError

PLAIN = Preparation((8, 8), colour="grey", per_image_standardise=False, whiten=False, dtype="uint8")


class Dots(Source):
    """Grey images, with a test's value in place of one method's result for sample 3."""

    classes = ("even", "odd")

    def __init__(self, count: int = 12, **odd: Callable[[], Any]) -> None:
        self.count, self.odd = count, odd

    def __len__(self) -> int:
        return self.count

    @property
    def identity(self) -> str:
        return f"dots {self.count}"

    def name(self, index: int) -> str:
        return f"dot {index}"

    def label(self, index: int) -> int:
        return self.odd["label"]() if index == 3 and "label" in self.odd else index % 2

    def read(self, index: int) -> Image.Image:
        if index == 3 and "read" in self.odd:
            found: Image.Image = self.odd["read"]()
            return found
        return Image.new("L", (8, 8), index)


def asleep() -> None:
    raise ValueError("the sensor was asleep")


def missing() -> None:
    raise BrokenImageError("dot 3: is missing")


@pytest.mark.parametrize(
    ("read", "told"),
    [
        (
            asleep,
            r"dot 3 of \S+Dots cannot be read \(ValueError: the sensor was asleep, in \S+, line \d+, asl",
        ),
        (lambda: None, r"dot 3 of \S+Dots: read must return a PIL image, got None"),
        (
            lambda: np.zeros((8, 8)),
            r"dot 3 of \S+Dots: read must return a PIL image, got a ndarray.*PIL.Image.fromarray",
        ),
    ],
)
def test_a_sample_that_its_source_fails_to_read_is_named(
    read: Callable[[], object], told: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=told):
        prepare(Dots(read=read), tmp_path / "store", PLAIN, jobs=1)
    with pytest.raises(SourceError, match=told):
        list(stream(Dots(read=read), Transform(PLAIN), 4))


def test_a_source_says_itself_which_samples_are_broken(tmp_path: Path) -> None:
    assert prepare(Dots(read=missing), tmp_path / "store", PLAIN, jobs=1).broken_files == (
        "dot 3: is missing",
    )


@pytest.mark.parametrize(
    ("label", "told"),
    [
        (7, "dot 3 of .*Dots has label 7, but the source has the classes 0 to 1"),
        (-1, "dot 3 of .*Dots has label -1"),
        ("odd", "dot 3: the label must be the number of a class .* got 'odd'"),
        (0.5, "dot 3: the label must be the number of a class .* got 0.5"),
    ],
)
def test_labels_that_are_no_classes_are_refused_before_anything_is_written(
    label: object, told: str, tmp_path: Path
) -> None:
    with pytest.raises(SourceError, match=told):
        prepare(Dots(label=lambda: label), tmp_path / "store", PLAIN, jobs=1)
    assert not list((tmp_path / "store").iterdir())


def test_labels_of_vectors_that_are_no_classes_are_refused(tmp_path: Path) -> None:
    rows = np.ones((4, 3))
    labels = LabelArray(np.array([0, 1, 5, 0]), ("low", "high"))
    source = VectorSource([VectorArray("table", (4, 3), None, lambda: rows)], "table", labels)
    with pytest.raises(SourceError, match=r"table\[2\] of .*VectorSource has label 5"):
        prepare(source, tmp_path / "store", VectorPreparation(3), validation=0, jobs=1)


def test_a_source_that_cannot_be_pickled_says_so(tmp_path: Path) -> None:
    lock = threading.Lock()
    source = Dots(200, other=lambda: lock)
    with pytest.raises(SourceError, match=r"Dots cannot be sent to the processes .*pickle.*lambda"):
        prepare(source, tmp_path / "store", PLAIN, jobs=2)


def test_a_source_without_samples_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="Dots is empty"):
        prepare(Dots(0), tmp_path / "store", PLAIN)


POINTS = """
[cotswold.sources]
dots = dots_for_cotswold:open_dots
three = dots_for_cotswold:open_three
bare = dots_for_cotswold:Bare
"""
MODULE = """
from cotswold.data import Source

class Bare(Source):
    def __init__(self, text, include, exclude, labels):
        pass

def open_dots(text, include, exclude, labels):
    return int(text.partition(":")[2])

def open_three(text, include, exclude):
    return None
"""


def install(folder: Path, name: str, points: str) -> None:
    about = folder / f"{name}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(points)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "installed"
    install(folder, "dots_for_cotswold", POINTS)
    (folder / "dots_for_cotswold.py").write_text(MODULE)
    monkeypatch.syspath_prepend(folder)
    return folder


@pytest.mark.parametrize(
    ("source", "told"),
    [
        (
            "dots:many",
            r"dots:many cannot be opened: dots_for_cotswold:open_dots.*invalid literal.*\.py, line 9",
        ),
        ("three:1", r"three:1 cannot be opened: .*takes 3 positional arguments but 4 were given"),
        ("bare:1", r"bare:1 cannot be opened: .*abstract class Bare.*identity"),
        ("dotz:1", r"dotz:1 does not exist; .* or a source of an installed package: bare: dots: three:"),
    ],
)
def test_an_opener_that_fails_is_told_with_its_place(package: Path, source: str, told: str) -> None:
    with pytest.raises(SourceError, match=told):
        open_source(source)


def test_two_packages_with_one_scheme_are_both_named(package: Path) -> None:
    install(package, "other_dots", "[cotswold.sources]\ndots = elsewhere:open_dots\n")
    with pytest.raises(
        SourceError, match=r"dots_for_cotswold \(\S+\) and other_dots \(elsewhere:open_dots\)"
    ):
        open_source("dots:3")

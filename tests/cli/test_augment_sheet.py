"""`cotswold data augment`: images next to their variants."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import Desk
from tests.support.cli.command import cotswold


@pytest.fixture
def recipe(desk: Desk, tmp_path: Path) -> Path:
    """Return a recipe that mirrors every image vertically."""
    found = tmp_path / "augmented.toml"
    table = '\n[[data.augment]]\nname = "flip"\nhorizontal = 0\nvertical = 1\n'
    found.write_text(desk.layers_recipe.read_text() + table)
    return found


def test_a_sheet_has_originals_and_their_variants(recipe: Path, desk: Desk, tmp_path: Path) -> None:
    out = tmp_path / "sheet.png"
    words = ("--out", out, "--stores", desk.stores, "--samples", 3, "--variants", 2)
    said = cotswold("data", "augment", recipe, *words)
    assert said.status == 0, said.err
    assert str(out) in said.out
    with Image.open(out) as image:
        sheet = np.asarray(image)
    gaps = np.flatnonzero((sheet[:, :, 3] == 0).all(0))
    times = len(gaps) // 2
    small = sheet[::times, ::times]
    side = (small.shape[1] - 2) // 3
    tiles = [
        [small[row * (side + 1) :, column * (side + 1) :][:side, :side, :3] for column in range(3)]
        for row in range(3)
    ]
    assert small.shape[:2] == (3 * side + 2, 3 * side + 2)
    for original, *variants in tiles:
        assert original.std() > 0
        assert all(np.array_equal(one, original[::-1]) for one in variants)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--out", "sheet.jpg"), "must be a .png file"),
        (("--out", "sheet.png", "--samples", 0), "--samples must be from 1 to 100, got 0"),
        (("--out", "sheet.png", "--variants", 101), "--variants must be from 1 to 100, got 101"),
    ],
)
def test_what_cannot_be_drawn_is_said(recipe: Path, words: tuple[object, ...], sentence: str) -> None:
    said = cotswold("data", "augment", recipe, *words)
    assert said.status == 2 and sentence in said.error


def test_a_recipe_without_transforms_is_refused(desk: Desk, tmp_path: Path) -> None:
    words = ("--out", tmp_path / "sheet.png", "--stores", desk.stores)
    said = cotswold("data", "augment", desk.layers_recipe, *words)
    assert said.status == 2 and "has no augmentation" in said.error
    assert not (tmp_path / "sheet.png").exists()

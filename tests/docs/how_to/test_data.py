"""docs/how-to/get-the-data.md: its table fits the shipped recipes, its steps make files that they read."""

from __future__ import annotations

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests.support.training.small_recipes import draw

from cotswold import recipe as recipes
from cotswold.data import open_samples
from cotswold.errors import SourceError

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "get-the-data.md").read_text(encoding="utf-8")
VARIABLE = re.compile(r"\$\{(\w+)\}/?(.*)")
PLACES = ("none", "COTSWOLD_DATA", "COTSWOLD_IMAGES")


def rows(heading: str) -> list[list[str]]:
    section = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("| `")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def sources(name: str) -> list[str]:
    """Return the sources of a recipe, and of its tests."""
    found = recipes.load(name)
    return [
        str(found.data.source),
        *(path for test in found.evaluate for path in (test.positives, test.negatives)),
    ]


def test_the_table_has_every_shipped_recipe_with_its_variable_and_files() -> None:
    table = {
        row[0].strip("` "): (row[1].strip("`"), re.findall(r"`([\w.-]+\.zip|mnist)`", row[2]))
        for row in rows("Recipes and their data")
    }
    assert sorted(table) == sorted(recipes.shipped_names())
    for name, (variable, files) in table.items():
        matches = [VARIABLE.fullmatch(source) for source in sources(name)]
        wanted = [(match[1], match[2]) for match in matches if match is not None]
        assert {variable} == ({each for each, _ in wanted} or {"none"}), name
        assert set(files) == {file for _, file in wanted if file}, name


def test_the_numbers_of_recipes_are_those_of_the_table() -> None:
    counts = {
        place: sum(row[1].strip("`") == place for row in rows("Recipes and their data")) for place in PLACES
    }
    words = {2: "two", 12: "Twelve"}
    assert f"{words[counts['COTSWOLD_DATA']]} of the {sum(counts.values())} shipped recipes read" in PAGE
    assert f"{words[counts['COTSWOLD_IMAGES']].capitalize()}\nread a folder" in PAGE
    assert f"The other {words[counts['none']]} need neither" in PAGE


def test_the_folder_shows_every_file_that_a_recipe_names() -> None:
    (tree,) = re.findall(r"```text\n(.*?)```", PAGE, flags=re.DOTALL)
    shown = set(re.findall(r"[├└]── (\S+)", tree))
    matches = [VARIABLE.fullmatch(source) for name in recipes.shipped_names() for source in sources(name)]
    named = {match[2] for match in matches if match is not None and match[1] == "COTSWOLD_DATA"}
    assert named <= shown and {each for each in shown if not each.endswith(".gz")} == named
    described = {row[0].strip("` ") for row in rows("The folder")}
    assert described == named


def archive_of(parent: Path, target: Path, names: list[str]) -> None:
    subprocess.run([sys.executable, "-m", "zipfile", "-c", str(target), *names], cwd=parent, check=True)


def test_a_zip_from_inside_the_folder_of_categories_fits_the_patterns_of_recipes(tmp_path: Path) -> None:
    assert 'python -m zipfile -c "$COTSWOLD_DATA/caltech101.zip" */' in PAGE
    parent = tmp_path / "101_ObjectCategories"
    for number, name in enumerate(("Faces", "Faces_easy", "BACKGROUND_Google", "ants")):
        draw(parent / name, 3, level=True, first=10 * number)
    good, bad = tmp_path / "good.zip", tmp_path / "bad.zip"
    archive_of(parent, good, [f"{each.name}/" for each in sorted(parent.iterdir())])
    archive_of(tmp_path, bad, ["101_ObjectCategories/"])
    patterns = {name: recipes.load(name).data for name in ("faces", "faces-control", "distbelief-images")}
    for data in patterns.values():
        found = open_samples(good, "images", exclude=data.exclude, labels=data.labels)  # type: ignore[union-attr]  # images
        assert 0 < len(found) < 12
        with pytest.raises(SourceError, match=r"matches none of the 12 names in"):
            open_samples(bad, "images", exclude=data.exclude)  # type: ignore[union-attr]  # images


def test_binary_files_of_cifar_are_split_as_published(tmp_path: Path) -> None:
    names = re.findall(r"`(\w+_batch(?:_\d)?\.bin)`", PAGE)
    assert names == ["data_batch_1.bin", "data_batch_5.bin", "test_batch.bin"]
    for name in names:
        records = np.zeros((4, 3073), np.uint8)
        records[:, 0] = np.arange(4)
        (tmp_path / name).write_bytes(records.tobytes())
    found = open_samples(tmp_path, "images", labels="file")
    assert [found.split_of(index) for index in range(12)] == ["train"] * 8 + ["test"] * 4


def test_the_program_converts_recordings_to_the_files_that_recipes_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soundfile = pytest.importorskip("soundfile", reason="soundfile is not installed")
    monkeypatch.chdir(tmp_path)
    Path("recordings").mkdir()
    sound = np.random.default_rng(0).integers(-3000, 3000, 4000).astype(np.int16)
    for speaker in ("ada", "ben", "cleo"):
        soundfile.write(f"recordings/7_{speaker}_0.wav", sound, 8000)
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(compile(program, "get-the-data.md", "exec"), {})
    with zipfile.ZipFile("free-spoken-digits.zip") as archive:
        assert archive.namelist() == [f"recordings/7_{each}_0.flac" for each in ("ada", "ben", "cleo")]
        with archive.open("recordings/7_ada_0.flac") as file:
            assert np.array_equal(soundfile.read(file, dtype="int16")[0], sound)
    found = open_samples("free-spoken-digits.zip", "frames", labels="file")
    assert found.classes is not None and len(found.classes) == 30

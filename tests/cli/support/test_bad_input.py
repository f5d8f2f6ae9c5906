"""User errors: one sentence names cause and remedy, and no file is overwritten."""

from __future__ import annotations

import errno
import json
import os
import re
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.cli.conftest import Desk
from tests.support.cli.command import Said, cotswold
from tests.support.training.small_recipes import draw, stripes

from cotswold.analysis import Classification
from cotswold.cli.support.evaluation_tables import print_confusion
from cotswold.errors import RecipeError
from cotswold.run import RunDirectory, read_events


def train(text: str, tmp_path: Path, *words: object) -> Said:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(text)
    return cotswold("train", recipe, "--run", tmp_path / "run", "--stores", tmp_path / "stores", *words)


@pytest.mark.parametrize(
    ("genuine", "slip", "words"),
    [
        (
            "kernel_size = 6",
            "kernel_sise = 6",
            r"mine\.toml, line 6: network\.stacks\.0\.kernel_sise is not a key; did you mean kernel_size\?",
        ),
        ("[training]", "[trianing]", r"trianing is not a key; did you mean training\?"),
        (
            "batch_size = 8",
            'batch_size = "eight"',
            r"training\.batch_size must be an integer > 0, not 'eight'",
        ),
        (
            "batch_size = 8",
            "batch = 8",
            r"training\.batch is not a key; did you mean batch_size\?",
        ),
        ("batch_size = 8", "batch_size = 0", r"training\.batch_size must be an integer > 0, not 0"),
        ("batch_size = 8", "batch_size =", r"mine\.toml is not TOML: .*line 2\d"),
        (
            '"greedy"',
            '"greedily"',
            r"training\.strategy is 'greedily'; did you mean greedy\?",
        ),
        ("kernel_size = 6", "kernel_size = 60", r"network\.stacks\.0: .*60.*16"),
        ("kernel_size = 4", "kernel_size = 13", r"network\.stacks\.1: .*13.*12"),
        (
            "block = [2, 2]\nchannels = 3",
            "block = [2, 2]\nchannels = 3\npadding = -1",
            r"padding must be .*>= 0",
        ),
    ],
)
def test_a_slip_in_a_recipe_is_named_with_its_remedy(
    desk: Desk, tmp_path: Path, genuine: str, slip: str, words: str
) -> None:
    text = desk.stacks_recipe.read_text()
    assert genuine in text
    said = train(text.replace(genuine, slip), tmp_path)
    assert said.status == 2
    assert re.search(words, said.error), said.error
    assert not (tmp_path / "run").exists() and not (tmp_path / "stores").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(RecipeError):
        cotswold("info", tmp_path / "nothing.toml", "--debug")


def test_a_recipe_that_is_not_there_is_answered_with_the_ones_that_are(tmp_path: Path) -> None:
    said = cotswold("train", "dmeo")
    assert said.status == 2
    assert "no recipe file 'dmeo'; did you mean demo?" in said.error
    said = cotswold("info", tmp_path)
    assert said.status == 2
    assert "is a folder; give a recipe's TOML file" in said.error


@pytest.mark.parametrize(
    "override", ["training", "training.batch_size=[1,", "training.batch_size=eight", "nothing.at.all=1"]
)
def test_an_override_that_is_none_is_refused(override: str) -> None:
    said = cotswold("info", "demo", "--set", override)
    assert said.status == 2
    assert override.split("=")[0].split(".")[0] in said.error


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["trian"], 'did you mean "train"?'),
        (["train", "--rum", "x"], "did you mean --run?"),
        (["prepare", "only-one"], "--out"),
        (["prepare", "a", "b", "--size", "large"], "--size"),
        (["train"], "name a recipe to train"),
        (["report", "nowhere"], "is not the directory of a run"),
        (["evaluate", "nowhere"], "is not the directory of a run"),
        (["predict", "nowhere", "a"], "is not the directory of a run"),
        (["features", "nowhere", "a", "b.npz"], "is not the directory of a run"),
    ],
)
def test_words_that_make_no_command_are_answered_in_one_sentence(words: list[str], sentence: str) -> None:
    said = cotswold(*words)
    assert said.status == 2
    assert sentence.lower() in said.error.lower()
    assert said.out == ""


def test_a_variable_that_is_not_set_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTSWOLD_DATA", raising=False)
    said = cotswold("train", "cifar10", "--run", tmp_path / "run", "--stores", tmp_path / "stores")
    assert said.status == 2
    assert "environment variable COTSWOLD_DATA, which is not set; set it (export COTSWOLD_DATA=" in said.error
    assert list(tmp_path.iterdir()) == []


def prepare(source: Path, tmp_path: Path, *words: object) -> Said:
    return cotswold("prepare", source, tmp_path / "store", "--size", 16, "--jobs", 1, *words)


def test_a_source_that_is_missing_empty_or_without_images_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read.me").write_text("no image")
    (tmp_path / "broken").mkdir()
    for number in range(3):
        (tmp_path / "broken" / f"{number}.png").write_bytes(b"no image")
    reasons = {
        "missing": "does not exist",
        "empty": "is empty",
        "notes": "contains no images",
        "notes/read.me": "is of an unknown kind",
        "broken": "no training image can be read",
    }
    for name, reason in reasons.items():
        said = prepare(tmp_path / name, tmp_path)
        assert said.status == 2
        assert reason in said.error
        assert not (tmp_path / "store").exists()


def bomb(path: Path, side: int = 60_000) -> None:
    """Write a PNG of a few bytes with enormous declared dimensions."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + data + chunk(b"IEND", b""))


def test_images_of_every_size_and_mode_are_prepared_and_broken_ones_and_bombs_are_named(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "images"
    draw(folder, 8, level=True)
    for number, mode in enumerate(("L", "1", "P", "RGBA", "LA", "CMYK", "I;16", "F")):
        side = 10 + 7 * number
        image = Image.fromarray(stripes(number, True, side))
        kept = image.convert("L").convert(mode) if mode in ("I;16", "F") else image.convert(mode)
        kept.resize((side, 2 * side)).save(
            folder / f"mode{number}.{'tif' if mode in ('CMYK', 'F') else 'png'}"
        )
    bomb(folder / "bomb.png")
    (folder / "torn.png").write_bytes((folder / "000.png").read_bytes()[:200])
    said = prepare(folder, tmp_path)
    assert said.status == 0, said.err
    assert "2 broken images were skipped" in said.out
    assert "bomb.png: more than 89,478,485 pixels (a decompression bomb?)" in said.out
    assert "torn.png: " in said.out
    summary = json.loads(prepare(folder, tmp_path, "--json").out)
    assert sum(summary["splits"].values()) == 16
    assert summary["broken"] == 2


def test_train_names_what_was_left_out_and_how_images_were_split_and_keeps_it_in_the_run(
    desk: Desk, tmp_path: Path
) -> None:
    draw(tmp_path / "set" / "train", 12, level=True)
    draw(tmp_path / "set" / "test", 4, level=True, first=100)
    (tmp_path / "set" / "train" / "torn.png").write_bytes(b"torn")
    text = desk.stacks_recipe.read_text().replace(str(desk.images), str(tmp_path / "set"))
    said = train(text, tmp_path)
    assert said.status == 0, said.err
    left_out = "1 broken image was left out: train/torn.png: not an image of a known format"
    split = "splits by the names of folders or files: 13 train and 4 test; validation is drawn from train"
    assert f"cotswold: {left_out}\n" in said.err
    assert f"cotswold: {split}\n" in said.err
    (begun,) = [
        event for event in read_events(RunDirectory(tmp_path / "run").events) if event["kind"] == "start"
    ]
    assert begun["notes"] == [split, left_out]
    again = cotswold("train", "--run", tmp_path / "run", "--resume")
    assert "left out" not in again.err


def test_a_store_is_never_overwritten_by_another(tmp_path: Path) -> None:
    draw(tmp_path / "images", 12, level=True)
    assert prepare(tmp_path / "images", tmp_path).status == 0
    said = cotswold("prepare", tmp_path / "images", tmp_path / "store", "--size", 20, "--jobs", 1)
    assert said.status == 2
    assert "already contains a store that differs in size ([16, 16], not [20, 20])" in said.error
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("precious")
    said = cotswold("prepare", tmp_path / "images", tmp_path / "other", "--size", 20, "--jobs", 1)
    assert said.status == 2
    assert "is neither empty nor a store" in said.error
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.tex"]


def test_an_array_of_the_wrong_shape_or_range_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "flat.npy", np.zeros((20, 256), np.uint8))
    np.save(tmp_path / "signed.npy", np.full((20, 16, 16), -3.0, np.float32))
    (tmp_path / "torn.npy").write_bytes(b"\x93NUMPY\x01")
    reasons = {
        "flat": "contains vectors, to which size does not apply",
        "signed": "values from -3 to -3",
        "torn": "cannot be read as .npy",
    }
    for name, reason in reasons.items():
        said = prepare(tmp_path / f"{name}.npy", tmp_path)
        assert said.status == 2
        assert reason in said.error


def test_a_truncated_chunk_of_a_store_is_named(tmp_path: Path, desk: Desk) -> None:
    assert cotswold("prepare", desk.images, tmp_path / "store", "--size", 16, "--jobs", 1).status == 0
    text = re.sub(
        r"data = .*", f'data = {{ store = "{tmp_path / "store"}" }}', desk.stacks_recipe.read_text()
    )
    files = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    chunk = max(files, key=lambda path: path.stat().st_size)
    os.truncate(chunk, chunk.stat().st_size - 10)
    said = train(text, tmp_path)
    assert said.status == 1
    assert str(chunk.relative_to(tmp_path / "store")) in said.error
    (tmp_path / "store" / "manifest.json").write_text("{")
    said = train(text, tmp_path)
    assert said.status == 1
    assert "manifest.json" in said.error


def test_files_that_cannot_be_written_are_named(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("precious")
    said = cotswold("train", desk.stacks_recipe, "--run", tmp_path / "file", "--stores", desk.stores)
    assert said.status == 2
    assert "is a file; choose another directory for the run" in said.error
    said = cotswold("train", desk.stacks_recipe, "--run", tmp_path / "run", "--stores", tmp_path / "file")
    assert said.status in (1, 2)
    assert str(tmp_path / "file") in said.error
    out = tmp_path / "features.npz"
    out.write_text("precious")
    said = cotswold("features", desk.stacks, desk.images, out)
    assert said.status == 2
    assert str(out) in said.error
    assert out.read_text() == "precious"


def test_a_recipe_that_is_kept_is_not_trusted_blindly(desk: Desk, tmp_path: Path) -> None:
    run = RunDirectory.create(tmp_path / "run", "name = 3\n", {})
    said = cotswold("train", "--run", run.path, "--resume")
    assert said.status == 2
    assert "recipe.toml" in said.error


STEERING = "\x1b[2J\x1b]0;mine\x07 [/b] \u202e"
"""Control text that clears a terminal, sets its title, ends a style of rich, and reverses the direction of
writing."""


def test_names_of_images_do_not_steer_the_terminal(tmp_path: Path) -> None:
    draw(tmp_path / "images", 3, level=True)
    for name in (f"{STEERING.replace('/', '')}.png", "two\nlines.png"):
        (tmp_path / "images" / name).write_bytes(b"no image")
    said = cotswold("prepare", tmp_path / "images", tmp_path / "store", "--size", 8, "--jobs", 1)
    assert said.status == 0
    lines = said.out.splitlines()
    assert lines[-3] == "2 broken images were skipped:"
    assert sum(line.startswith("  two lines.png: ") for line in lines[-2:]) == 1
    assert not [each for line in lines for each in line if not each.isprintable()]


def test_names_of_classes_do_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    print_confusion(Classification(1, "test", (STEERING, "dog"), ((1, 0), (0, 1))))
    many = (STEERING, *(f"class {number}" for number in range(20)))
    row = tuple(int(number == 1) for number in range(21))
    print_confusion(Classification(1, "test", many, (row, *([(0,) * 21] * 20))))
    shown = capsys.readouterr().out
    assert shown.count("[/b]") == 3
    assert not [each for each in shown if not each.isprintable() and each != "\n"]


def test_too_many_open_files_are_told_with_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("builtins.print", none_left)
    monkeypatch.setattr("cotswold.ui.terminal.put", lambda line, stream: stream.write(f"{line}\n"))
    monkeypatch.setattr("cotswold.cli.support.failures.raise_descriptor_limit", lambda: 64)
    said = cotswold("recipe", "list")
    assert said.status == 1
    words = " ".join(said.error.split())
    assert words == "Too many open files: this process may open 64 files; raise it (ulimit -n 1024)"


def test_output_to_a_full_disk_is_no_error_of_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("builtins.print", full)
    monkeypatch.setattr("cotswold.ui.terminal.put", lambda line, stream: stream.write(f"{line}\n"))
    said = cotswold("recipe", "list")
    assert said.status == 1
    assert said.error.startswith("no space left to write the output (No space left on device); ")

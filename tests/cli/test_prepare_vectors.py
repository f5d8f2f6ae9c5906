"""`cotswold prepare` and `cotswold info` on vectors and frames."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.support.cli.command import cotswold


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    np.savez(tmp_path / "table.npz", x=random.normal(size=(40, 3)), y=np.arange(40) % 2)
    (tmp_path / "speech").mkdir()
    for number in range(4):
        np.save(tmp_path / "speech" / f"{number}.npy", random.normal(size=(10, 3)))
    (tmp_path / "images").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / "images" / "a.png")
    return tmp_path


def test_vectors_are_prepared_and_told(folder: Path) -> None:
    said = cotswold("prepare", folder / "table.npz", folder / "s", "--labels", "file", "--validation", 0.25)
    assert (said.status, said.out.split(" in ")[0]) == (0, f"{folder / 's'}: 30 train, 10 validation vectors")
    said = cotswold("prepare", folder / "table.npz", folder / "s", "--labels", "file", "--validation", 0.25)
    assert said.out.startswith(f"{folder / 's'} is already finished, nothing to do: 30 train")
    told = cotswold("info", folder / "s")
    assert told.out.startswith(f"{folder / 's'}: a store of vectors\nshape: 3 x 1 x 1\n")
    assert "classes: 0, 1\n" in told.out and "standardise yes, dtype float32" in told.out
    assert json.loads(cotswold("info", folder / "s", "--json").out)["splits"] == {
        "train": 30,
        "validation": 10,
    }
    assert cotswold("verify", folder / "s").status == 0


def test_frames_have_a_context_of_five_unless_another_is_given(folder: Path) -> None:
    for number, (words, channels) in enumerate([((), 33), (("--context", 1), 9)]):
        assert cotswold("prepare", folder / "speech", folder / str(number), *words).status == 0
        told = json.loads(cotswold("info", folder / str(number), "--json").out)
        assert told["shape"] == f"{channels} x 1 x 1" and told["sequences"] == {"train": 4}


@pytest.mark.parametrize(
    ("source", "words", "says"),
    [
        ("table.npz", ["--size", 16], "contains vectors, to which size does not apply"),
        ("table.npz", ["--no-whiten", "--colour", "grey"], "to which colour, whiten does not apply"),
        ("table.npz", ["--context", 2], "contains vectors, to which context does not apply"),
        ("speech", ["--unit-rms"], "contains frames, to which unit_rms does not apply"),
        ("images", ["--context", 2], "contains images, to which context does not apply"),
        ("images", ["--no-standardise"], "contains images, to which standardise does not apply"),
        ("table.npz", ["--dtype", "uint8"], "dtype must be float32 or float16"),
        ("images", ["--dtype", "float32"], "dtype must be float16 or uint8"),
    ],
)
def test_options_that_mean_nothing_are_refused_by_name(
    source: str, words: list[object], says: str, folder: Path
) -> None:
    said = cotswold("prepare", folder / source, folder / "s", *words)
    assert said.status != 0 and says in said.error
    assert not (folder / "s").exists()


NUMBERS = """
name = "sums"
data = {{ type = "vectors", source = "{source}", labels = "file", validation = 0.25 }}
network = {{ layers = [] }}
objective = {{ loss = "squared_error" }}
training = {{ strategy = "supervised", epochs = 1, batch_size = 10, threads = 1 }}
"""


def test_numbers_are_predicted_and_their_errors_told(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(folder / "sums.npz", x=x, y=x[:, :2])
    (folder / "sums.toml").write_text(NUMBERS.format(source=folder / "sums.npz"))
    run, stores = folder / "run", folder / "stores"
    said = cotswold("train", folder / "sums.toml", "--run", run, "--stores", stores)
    assert said.status == 0 and "sums: supervised, 30 samples, 8 weights" in said.err
    lines = cotswold("predict", run, folder / "sums.npz").out.splitlines()
    assert lines[0] == "vector,number,value" and len(lines) == 1 + 80
    assert lines[2].startswith("x[0],1,")
    first = json.loads(cotswold("predict", run, folder / "sums.npz", "--json").out.splitlines()[0])
    assert first.keys() == {"schema", "vector", "number", "value"} and first["number"] == 0
    assert first["schema"] == "cotswold.predict/1"
    said = cotswold("evaluate", run, "--stores", stores)
    assert said.out.startswith("validation: squared loss ") and "RMSE" in said.out and "explained" in said.out


def test_a_table_is_prepared_with_its_target(tmp_path: Path) -> None:
    lines = ["size;mark;number", *(f"{at / 2};{'ab'[at % 2]};{at}" for at in range(40))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    words = ["prepare", tmp_path / "a.csv", tmp_path / "s", "--target", "mark", "--ignore", "-1"]
    said = cotswold(*words, "--validation", 0.25)
    assert (said.status, said.out.split(" in ")[0]) == (0, f"{tmp_path / 's'}: 30 train, 10 validation rows")
    told = cotswold("info", tmp_path / "s")
    assert told.out.startswith(f"{tmp_path / 's'}: a store of rows\nshape: 1 x 1 x 1\n")
    assert "columns: size numbers, mark target (class)" in told.out
    np.save(tmp_path / "a.npy", np.ones((3, 2)))
    said = cotswold("prepare", tmp_path / "a.npy", tmp_path / "t", "--target", "mark", "--missing", "impute")
    assert said.status == 2
    assert "is not a CSV or Parquet file, to which --target, --missing applies; omit it" in said.err

"""Runs on tables: from a file to predictions, with two strategies, and real files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pandas
import pytest

import cotswold
from cotswold.analysis import Classification, Regression
from cotswold.cli.support.evaluation_tables import show
from cotswold.errors import RecipeError, SourceError

TABLES = Path(os.environ.get("COTSWOLD_DATA", "")) / "tables"
real = pytest.mark.skipif(
    not (TABLES / "concrete.csv").is_file(), reason="set COTSWOLD_DATA to the folder with tables/"
)
LAYERS = """
[[network.layers]]
type = "linear"
features = 16

[[network.layers]]
type = "relu"
"""
SUPERVISED = '[training]\nstrategy = "supervised"\nbatch_size = 32\nepochs = 20'
BATCH = '[training]\nstrategy = "batch"\nmax_iterations = 30'


def recipe(path: Path, data: str, training: str = SUPERVISED, loss: str = "") -> str:
    path.write_text(f'name = "table"\n[data]\ntype = "table"\n{data}\n{LAYERS}\n{loss}\n{training}\n')
    return str(path)


def frame(rows: int = 400, seed: int = 0) -> pandas.DataFrame:
    """Return a table whose answer depends on a number and a category."""
    random = np.random.default_rng(seed)
    found = pandas.DataFrame(
        {"age": random.integers(20, 70, rows), "job": random.choice(["clerk", "cook", "nurse"], rows)}
    )
    found["answer"] = np.where((found["age"] > 45) == (found["job"] == "cook"), "yes", "no")
    found["size"] = found["age"] / 10 + (found["job"] == "cook") + 1000
    return found


@pytest.mark.parametrize("training", [SUPERVISED, BATCH])
def test_a_run_on_a_file_predicts_raw_rows(training: str, tmp_path: Path) -> None:
    rows = frame()
    rows.to_csv(tmp_path / "a.csv", index=False)
    data = f'source = "{tmp_path}/a.csv"\ntarget = "answer"\nignore = ["size"]\ntest = 0.2'
    run = cotswold.train_recipe(
        recipe(tmp_path / "r.toml", data, training), tmp_path / "run", stores=tmp_path
    )
    tested = cotswold.evaluate(run)
    assert isinstance(tested, Classification) and tested.split == "test" and tested.accuracy > 0.9
    new = frame(seed=1)
    new.to_csv(tmp_path / "new.csv", index=False, sep=";")
    whole = cotswold.evaluate(run, source=tmp_path / "new.csv", metrics=["macro_f1", "auroc"])
    assert isinstance(whole, Classification) and whole.accuracy > 0.9
    figures = [f"  {name}: {whole.metrics[name]:.5g}" for name in ("macro_f1", "auroc")]
    assert repr(whole).splitlines()[-2:] == figures and "<td>auroc</td>" in whole._repr_html_()
    same = cotswold.evaluate(run, source=new)
    assert isinstance(same, Classification) and same.accuracy == whole.accuracy
    found = cotswold.predict(run, new[["job", "age"]])
    from_file = cotswold.predict(run, tmp_path / "new.csv")
    assert np.array_equal(found.probabilities, from_file.probabilities)
    assert np.mean(np.array(found.best) == new["answer"]) == pytest.approx(whole.accuracy)
    assert (found.names[0], from_file.names[0]) == ("row 0", "new.csv:2")
    with pytest.raises(SourceError, match="lacks 1 column of the run: 'age'"):
        cotswold.predict(run, new[["job"]])
    strange = cotswold.predict(run, new.assign(job=["pilot", *new["job"][1:]], other=1))
    assert [note.split(" ")[0] for note in strange.notes] == ["columns", "column"]
    wrong = new.assign(job=["pilot", "judge"] * (len(new) // 2))
    wrong.to_csv(tmp_path / "wrong.csv", index=False)
    for source in (wrong, tmp_path / "wrong.csv"):
        with pytest.raises(SourceError, match=r"column 'job' has no category .*'pilot', 'judge', and the"):
            cotswold.predict(run, source)
    with pytest.raises(SourceError, match="1 class that the run did not learn"):
        cotswold.evaluate(run, source=new.assign(answer="maybe"))
    assert cotswold.report(run).is_file()


def test_a_regression_predicts_in_the_unit_of_its_target_which_its_errors_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame().to_parquet(tmp_path / "a.parquet")
    data = f'source = "{tmp_path}/a.parquet"\ntarget = "size"\nignore = ["answer"]\ntest = 0.2'
    loss = '[objective]\nloss = "squared_error"'
    path = recipe(tmp_path / "r.toml", data, SUPERVISED, loss)
    run = cotswold.train_recipe(path, tmp_path / "run", stores=tmp_path)
    errors = cotswold.evaluate(run, metrics=["mae"])
    assert isinstance(errors, Regression) and errors.targets == ("size",)
    lines = repr(errors).splitlines()
    assert lines[1].startswith("  size: RMSE ") and lines[2] == f"  mae: {errors.metrics['mae']:.5g}"
    assert "<td>size</td>" in errors._repr_html_() and "<td>mae</td>" in errors._repr_html_()
    show(errors)
    assert "size" in capsys.readouterr().out
    assert '<th scope="row">size</th>' in cotswold.report(run).read_text()
    new = frame(seed=1)
    found = cotswold.predict(run, new.drop(columns="size"))
    assert np.abs(found.probabilities[:, 0] - new["size"]).mean() < 0.3


def test_a_store_of_a_frame_is_learnt_and_predicts_frames(tmp_path: Path) -> None:
    table = cotswold.data.table(frame(), target="answer", ignore=["size"])
    store = cotswold.prepare(table, tmp_path / "store", test=0.2)
    assert store.splits == {"train": 300, "validation": 20, "test": 80}
    run = cotswold.train_recipe(recipe(tmp_path / "r.toml", f'store = "{store.path}"'), tmp_path / "run")
    assert run.recipe.input.channels == 4
    found = cotswold.predict(run, frame(seed=1))
    assert np.mean(np.array(found.best) == frame(seed=1)["answer"]) > 0.9


def test_a_run_on_a_table_is_resumed_with_its_columns(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    data = f'source = "{tmp_path}/a.csv"\ntarget = "answer"\nignore = ["size"]'
    path = recipe(tmp_path / "r.toml", data, SUPERVISED.replace("20", "2"))
    run = cotswold.train_recipe(path, tmp_path / "run", stores=tmp_path)
    before = cotswold.predict(run, frame()).probabilities
    more = {"training.epochs": 20}
    resumed = cotswold.train_recipe(None, run.path, resume=True, overrides=more, stores=tmp_path)
    assert resumed.status == "finished" and resumed.recipe.data.width == 4  # type: ignore[union-attr]  # vectors alone have a width
    assert not np.array_equal(cotswold.predict(resumed, frame()).probabilities, before)


def test_a_recipe_without_a_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"needs labels; set data\.target to the column to predict"):
        cotswold.train_recipe(recipe(tmp_path / "r.toml", 'source = "a.csv"'), tmp_path / "run")


def test_info_counts_the_features_of_a_table(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    data = f'source = "{tmp_path}/a.csv"\ntarget = "answer"\nignore = ["size"]'
    assert (
        cotswold.info(recipe(tmp_path / "r.toml", data), time=False).totals["parameters"] == 4 * 16 + 16 + 34
    )


@real
@pytest.mark.parametrize("training", [SUPERVISED, BATCH])
def test_bank_marketing_is_learnt_from_its_file(training: str, tmp_path: Path) -> None:
    data = f'source = "{TABLES}/bank-additional.csv"\ntarget = "y"\ntest = 0.2'
    run = cotswold.train_recipe(
        recipe(tmp_path / "r.toml", data, training), tmp_path / "run", stores=tmp_path
    )
    found = cotswold.evaluate(run)
    assert isinstance(found, Classification) and found.accuracy > 0.9  # 0.89 answer no
    assert cotswold.predict(run, TABLES / "bank-additional.csv").classes == ("no", "yes")


@real
def test_adult_is_learnt_from_files_without_names_and_with_missing_values(tmp_path: Path) -> None:
    data = (
        f'source = "{TABLES}/adult-train.csv.gz"\ntest_source = "{TABLES}/adult-test.csv.gz"\n'
        'target = -1\nmissing = "impute"'
    )
    training = '[training]\nstrategy = "supervised"\nbatch_size = 128\nepochs = 2'
    run = cotswold.train_recipe(
        recipe(tmp_path / "r.toml", data, training), tmp_path / "run", stores=tmp_path
    )
    found = cotswold.evaluate(run)
    assert isinstance(found, Classification) and found.accuracy > 0.84
    assert found.samples == 16_281


@real
def test_concrete_is_regressed(tmp_path: Path) -> None:
    data = f'source = "{TABLES}/concrete.csv"\ntarget = "ConcreteCompressiveStrength"\ntest = 0.2'
    path = recipe(tmp_path / "r.toml", data, BATCH, '[objective]\nloss = "squared_error"')
    run = cotswold.train_recipe(path, tmp_path / "run", stores=tmp_path)
    found = cotswold.evaluate(run)
    assert isinstance(found, Regression) and max(found.rmse) < 8  # the deviation is 16.7


def test_stacks_learn_a_table_without_a_target_and_respond_to_frames(tmp_path: Path) -> None:
    frame().to_csv(tmp_path / "a.csv", index=False)
    (tmp_path / "r.toml").write_text(
        f'name = "stacks"\n[data]\ntype = "table"\nsource = "{tmp_path}/a.csv"\nignore = ["answer"]\n'
        "[[network.stacks]]\nkernel_size = 1\nchannels = 3\npool = 1\nnorm = 1\n"
        '[training]\nstrategy = "greedy"\nbatch_size = 50\nepochs = 1\n'
    )
    run = cotswold.train_recipe(tmp_path / "r.toml", tmp_path / "run", stores=tmp_path)
    found = cotswold.features(run, frame(seed=1)[["size", "job", "age"]])
    assert len(found.features) == 400 and np.isfinite(found.features).all()

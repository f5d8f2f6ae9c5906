"""`cotswold export` and `cotswold card`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.support.demo_runs import DemoRuns

import cotswold
from cotswold import training
from cotswold.cli.main import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    demo = DemoRuns(tmp_path_factory.mktemp("export"))
    demo.write()
    job = training.open_job(demo.layers_recipe, demo.path / "run", stores=demo.stores)
    job.train(watch=lambda event: None, stop=cotswold.Stop())
    return demo.path / "run"


def code(*words: object) -> object:
    with pytest.raises(SystemExit) as ended:
        main([str(each) for each in words])
    return ended.value.code


def test_export_says_what_it_wrote(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("export", run, tmp_path / "model.pt2") == 0
    said = capsys.readouterr().out
    assert (
        said.startswith(f"{tmp_path / 'model.pt2'}: torch.export, ") and "outputs differ by at most" in said
    )
    assert torch.export.load(tmp_path / "model.pt2").module()(torch.zeros(3, 3, 16, 16)).shape == (3, 2)
    assert code("export", run, tmp_path / "model.pt") == 0
    said = capsys.readouterr().out
    assert "model.pt.json: preparation of the samples" in said and "note: layers.4" in said


def test_mistakes_end_with_2(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("export", run, tmp_path / "model.h5") == 2
    assert "has no known suffix" in capsys.readouterr().err
    assert code("card", tmp_path) == 2
    assert "cotswold: " in capsys.readouterr().err


def test_a_card_is_printed_or_written(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert code("card", run) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("---\nlibrary_name: cotswold\n")
    assert code("card", run, tmp_path / "README.md", "--license", "mit") == 0
    assert (tmp_path / "README.md").read_text().startswith('---\nlicense: "mit"\n')

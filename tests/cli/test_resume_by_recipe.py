"""`cotswold train RECIPE --resume` without --run finds the run of the recipe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Desk
from tests.support.cli.command import cotswold

from cotswold.api.ranks import directory_to_resume
from cotswold.api.request import Request, Resumed
from cotswold.errors import RunError
from cotswold.recipe import load


def request(desk: Desk, resume: Resumed = True, *overrides: str) -> Request:
    return Request(str(desk.stacks_recipe), None, list(overrides), None, resume)


def test_the_usual_place_comes_first_and_the_only_run_elsewhere_second(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, heard = load(desk.stacks_recipe).name, list[str]()
    assert directory_to_resume(request(desk), heard.append) is None
    shutil.copytree(desk.stacks, tmp_path / "runs" / "other")
    (tmp_path / "runs" / "broken").mkdir()
    (tmp_path / "runs" / "broken" / "recipe.toml").write_text("no recipe")
    assert directory_to_resume(request(desk), heard.append) == Path("runs/other")
    assert heard == [f"resuming runs/other, the only run of {name} in runs"]
    assert directory_to_resume(request(desk, "if_started"), heard.append) is None
    assert directory_to_resume(request(desk, False), heard.append) is None
    shutil.copytree(desk.stacks, tmp_path / "runs" / "second")
    with pytest.raises(RunError, match=r"several runs of .*runs/other, runs/second; choose one with --run"):
        directory_to_resume(request(desk), heard.append)
    (tmp_path / "runs" / "second").rename(tmp_path / "runs" / name)
    assert directory_to_resume(request(desk), heard.append) == Path("runs") / name
    assert directory_to_resume(request(desk, "if_started"), heard.append) == Path("runs") / name


def test_the_command_resumes_the_run_that_it_finds(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(desk.stacks, tmp_path / "runs" / "other")
    said = cotswold("train", desk.stacks_recipe, "--resume", "--stores", desk.stores)
    assert said.status == 0, said.err
    assert "resuming runs/other, the only run of" in said.err and "resumed after step" in said.err
    assert not (tmp_path / "runs" / load(desk.stacks_recipe).name).exists()

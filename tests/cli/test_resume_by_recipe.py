"""`cotswold train RECIPE --resume` without --run finds the run of the recipe."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.cli.conftest import Desk
from tests.support.cli.command import cotswold

from cotswold.api.ranks import directory_to_resume
from cotswold.api.request import Request, Resumed
from cotswold.errors import RunError, UserError
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


@pytest.mark.parametrize(("rank", "count"), [(0, 1), (1, 0)])
def test_one_rank_of_a_launcher_tells_which_run_it_resumes(
    rank: int, count: int, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def join(*words: object) -> None:
        raise UserError("joined")

    monkeypatch.chdir(tmp_path)
    shutil.copytree(desk.stacks, tmp_path / "runs" / "other")
    monkeypatch.setattr("cotswold.api.ranks.join_ranks", join)
    torchrun = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
    for name, value in {**torchrun, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 20000}.items():
        monkeypatch.setenv(name, str(value))
    said = cotswold("train", desk.stacks_recipe, "--resume")
    assert said.status == 2 and "cotswold: joined" in said.err
    assert said.err.count("resuming runs/other") == count

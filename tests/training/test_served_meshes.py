"""Ranks that cut the network and take their windows from data servers: the bits of those that read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.mesh.ranks import on_ranks
from tests.training.runs import last, losses, recipe_of
from tests.training.test_data_servers import with_servers

from cotswold.errors import UserError
from cotswold.host.token import VARIABLE, Token
from cotswold.launch import Membership
from cotswold.mesh import Mesh
from cotswold.run import RunDirectory, Stop
from cotswold.training import Resume, open_job
from cotswold.training.team import Team


def _train(grid: str, recipe: str, run: str, stores: str, token: str | None, apart: bool) -> str:
    """Train as one of the ranks; what it was refused with, if it was."""
    os.fsync = lambda fd: None  # matters to power cuts alone
    group = dist.new_group()
    assert group is not None
    size = dist.get_world_size()
    members = Membership(dist.get_rank(), size, ("here",) * size, group)
    team = Team(members, Mesh.of(grid), members.rank, 1 if apart else size)
    if token is not None:
        os.environ[VARIABLE] = token
    try:
        job = open_job(recipe, run, stores=Path(stores), resume=Resume.NEVER, team=team)
        assert job.train(lambda event: None, Stop())
    except UserError as error:
        return str(error)
    finally:
        os.environ.pop(VARIABLE, None)
    return ""


def trained(recipe: str, run: Path, stores: Path, token: str | None = None, apart: bool = False) -> list[str]:
    run.with_suffix(".toml").write_text(recipe)
    words = ("1x2", str(run.with_suffix(".toml")), str(run), str(stores), token, apart)
    return [str(each) for each in on_ranks(2, _train, *words)]


@pytest.mark.parametrize("strategy", ["greedy", "supervised"])
def test_ranks_with_data_servers_learn_the_same_bits_as_without(
    strategy: str, pictures: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(strategy, pictures).replace("epochs = 4", "epochs = 2")
    assert trained(recipe, tmp_path / "alone", stores) == ["", ""]
    assert trained(with_servers(recipe, 2), tmp_path / "served", stores, Token.new().text) == ["", ""]
    alone, served = (RunDirectory.open(tmp_path / name) for name in ("alone", "served"))
    one, other = last(alone.checkpoints), last(served.checkpoints)
    assert one.names == other.names and one.names
    assert all(torch.equal(one.read(name), other.read(name)) for name in one.names)
    assert losses(alone) == losses(served)
    assert (served.path / "data-servers").is_dir()


def test_ranks_without_a_secret_or_on_several_hosts_are_told_what_to_do(
    pictures: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = with_servers(recipe_of("supervised", pictures), 1)
    for complaint in trained(recipe, tmp_path / "one", stores):
        assert VARIABLE in complaint
    for complaint in trained(recipe, tmp_path / "two", stores, Token.new().text, apart=True):
        assert "HOST:PORT" in complaint

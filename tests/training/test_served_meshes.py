"""Ranks that partition the network and read windows from data servers: the bits of ranks that read
the store.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.support.mesh.ranks import on_ranks
from tests.support.training.runs import bits, last, losses, recipe_of
from tests.training.data.test_data_servers import children, with_servers

from cotswold.errors import MachineError, UserError
from cotswold.host.token import VARIABLE, Token
from cotswold.launch import Membership
from cotswold.mesh import Mesh
from cotswold.run import RunDirectory, Stop, recorder
from cotswold.training import Resume, open_job
from cotswold.training.distributed import RankContext

pytestmark = pytest.mark.usefixtures("template")  # they look at the tree of processes


def _train(
    grid: str, recipe: str, run: str, stores: str, token: str | None, apart: bool, dies_at: int | None
) -> str:
    """Train as one of the ranks, whose data servers die after a step; return the error, if any."""
    os.fsync = lambda fd: None  # matters to power cuts alone
    group = dist.new_group()
    assert group is not None
    size = dist.get_world_size()
    members = Membership(dist.get_rank(), size, ("here",) * size, group)
    rank_context = RankContext(members, Mesh.of(grid), members.rank, 1 if apart else size)
    before = children()

    def watch(event: Mapping[str, object]) -> None:
        if event["kind"] == "step" and event["step"] == dies_at:
            for process in children() - before:
                os.kill(process, signal.SIGKILL)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recorder, "EVENT_SECONDS", 0.0)  # each step is an event
        if token is not None:
            patched.setenv(VARIABLE, token)
        try:
            job = open_job(
                recipe, run, stores=Path(stores), resume=Resume.IF_STARTED, rank_context=rank_context
            )
            assert job.train(watch, Stop())
        except (UserError, MachineError) as error:
            return str(error)
    return ""


def trained(
    recipe: str,
    run: Path,
    stores: Path,
    token: str | None = None,
    apart: bool = False,
    dies_at: int | None = None,
) -> list[str]:
    run.with_suffix(".toml").write_text(recipe)
    words = ("1x2", str(run.with_suffix(".toml")), str(run), str(stores), token, apart, dies_at)
    return [str(each) for each in on_ranks(2, _train, *words)]


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["greedy", "supervised"])
def test_ranks_with_data_servers_learn_the_same_bits_as_without(
    strategy: str, images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = recipe_of(strategy, images).replace("epochs = 4", "epochs = 2")
    assert trained(recipe, tmp_path / "alone", stores) == ["", ""]
    assert trained(with_servers(recipe, 2), tmp_path / "served", stores, Token.new().text) == ["", ""]
    alone, served = (RunDirectory.open(tmp_path / name) for name in ("alone", "served"))
    one, other = last(alone.checkpoints), last(served.checkpoints)
    assert one.names == other.names and one.names
    assert all(torch.equal(one.read(name), other.read(name)) for name in one.names)
    assert losses(alone) == losses(served)
    assert (served.path / "data-servers").is_dir()


def test_ranks_without_a_secret_or_on_several_hosts_are_told_what_to_do(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = with_servers(recipe_of("supervised", images), 1)
    for complaint in trained(recipe, tmp_path / "one", stores):
        assert VARIABLE in complaint
    for complaint in trained(recipe, tmp_path / "two", stores, Token.new().text, apart=True):
        assert "HOST:PORT" in complaint


@pytest.mark.soak
def test_ranks_whose_data_servers_are_lost_save_the_same_step_and_go_on_from_there(
    images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = recipe_of("supervised", images).replace("epochs = 4", "epochs = 30")  # more than is asked ahead
    token, run = Token.new().text, tmp_path / "served"
    assert trained(recipe, tmp_path / "alone", stores) == ["", ""]
    for complaint in trained(with_servers(recipe, 2), run, stores, token, dies_at=9):
        assert "data servers" in complaint and "resume the run" in complaint
    assert 9 <= bits(RunDirectory.open(run))[1]["position"]["total"] < 100
    assert trained(with_servers(recipe, 2), run, stores, token) == ["", ""]
    one, other = (last(RunDirectory.open(each).checkpoints) for each in (tmp_path / "alone", run))
    assert one.state["position"] == other.state["position"]
    assert all(torch.equal(one.read(name), other.read(name)) for name in one.names)

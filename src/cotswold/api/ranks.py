"""Which processes a run trains on: this one alone, ranks that it starts, or ranks that others started.

Knows: the environment, grids in words, facts that ranks compare. Does not know: how ranks find each other,
how anything is trained.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold import __version__, recipe
from cotswold.errors import CotswoldError, RunError, UserError
from cotswold.geometry import Grid
from cotswold.host import granted_cores
from cotswold.recipe import Recipe
from cotswold.run import RunDirectory

if TYPE_CHECKING:
    from cotswold.launch import World
    from cotswold.training.distributed import Team

Tell = Callable[[str], None]
"""Hears a sentence for the user."""
AUTO = "auto"
RANKS_A_CORE = 4
"""Processes that a call starts at most for each core of this machine."""


def cores() -> int:
    """Cores that this process and those that it starts are granted together."""
    return granted_cores(environ={})


def override(grid: str) -> str:
    """The override of a recipe that a word of the command line stands for; always a text."""
    return f"mesh.grid={json.dumps(grid)}"


def wanted_recipe(name: str | None, run: Path | None, overrides: Sequence[str], tell: Tell) -> Recipe:
    """The recipe that is asked for: that of a file or a shipped name, or that of a run that is resumed, in
    both cases with what the run remembers; ``tell`` hears of overrides that reach further than they say."""
    if run is not None and (run / "recipe.toml").is_file():
        known = RunDirectory.open(run)
        return recipe.load(known.recipe if name is None else name, [*known.remembered, *overrides], tell)
    if name is None and run is not None:
        from cotswold.training.jobs.create import NO_RUN

        raise RunError(NO_RUN.format(run))
    if name is None:
        raise UserError(
            "name a recipe to train, or a run to resume: --run DIRECTORY --resume (Python: directory=, "
            "resume=True)"
        )
    return recipe.load(name, overrides, tell)


def local_grid(wanted: Recipe, tell: Tell) -> Grid:
    """The grid of ranks that this process is to start: 1x1 where the recipe asks for none."""
    if wanted.mesh.grid is None or wanted.gang is not None:  # workers lead ranks of their own
        return Grid(1, 1)
    if wanted.mesh.grid != AUTO:
        return Grid.parse(wanted.mesh.grid)
    from cotswold.simulate import predicted_grids, this_machine

    tell("choosing the grid by the simulator's prediction")
    most = cores()
    return predicted_grids(this_machine(), wanted, [n for n in range(1, most + 1) if most % n == 0])[0]


def grid_of(wanted: Recipe, ranks: int, local_ranks: int) -> Grid:
    """The grid of ranks that others have started, so many on each host.

    What it chooses depends on this host. Raises UserError where their number is another than the recipe's.
    """
    if wanted.offloaded:
        raise UserError('training.offload = "disk" is for one process; start one, or take offload out')
    if wanted.mesh.grid in (None, AUTO):
        from cotswold.simulate import predicted_grids, this_machine

        hosts = -(-ranks // local_ranks)
        machine = this_machine().model_copy(update={"hosts": hosts, "devices": local_ranks})
        return predicted_grids(machine, wanted, [ranks])[0]
    assert wanted.mesh.grid is not None, "asked above"
    grid = Grid.parse(wanted.mesh.grid)
    if grid.size != ranks:
        raise UserError(
            f"a {grid} grid has {grid.size} ranks, and {ranks} were started; "
            "start as many, or let grid auto choose"
        )
    return grid


def prepare(world: World) -> None:
    """Set what torch reads when it is imported: threads of this rank."""
    from cotswold.launch import settings_of

    os.environ.update(settings_of(world, cores(), os.environ))


@contextmanager
def team(
    world: World, name: str | None, run: Path | None, overrides: Sequence[str], tell: Tell
) -> Iterator[Team]:
    """This rank among those that were started, all with the same recipe and version; for a `with` block.

    They know each other by the token in COTSWOLD_TOKEN, or, where the launcher brings none, by one in a file
    beside the run that the first of them makes: all must see that folder anyway, to write into the run.
    """
    from cotswold.host import token_in, token_of
    from cotswold.launch import join
    from cotswold.mesh import Mesh
    from cotswold.training.distributed import Team

    wanted: Recipe | None = None
    failure: CotswoldError | None = None
    try:
        heard = world.rank > 0 or world.launcher == "cotswold"  # another process says it
        wanted = wanted_recipe(name, run, overrides, _unheard if heard else tell)
    except CotswoldError as error:
        failure = error  # told once all have met, or some would wait for this one
    timeout = recipe.schema.Mesh().timeout if wanted is None else wanted.mesh.timeout
    secret = token_of(os.environ) or token_in(token_file(run))
    facts = _facts(wanted, failure)
    note = "the last checkpoint is whole"
    with join(world, timeout_seconds=timeout, token=secret, facts=facts, note=note) as members:
        if wanted is None:
            assert failure is not None, "there is no recipe"
            raise failure
        chosen = str(grid_of(wanted, world.size, world.local_size))
        grid = Grid.parse(members.gather(chosen)[0])  # hosts differ, and might choose differently
        mesh = Mesh.of(grid, wanted.training.device.partition(":")[0], secret)
        yield Team(members, mesh, world.local_rank, world.local_size)


def _unheard(sentence: str) -> None:
    """What another process has said."""


def token_file(run: Path | None) -> Path:
    """Where ranks that others start find the secret by which they know each other; users share folders."""
    folder = Path("runs") if run is None else run.parent
    return folder / f".cotswold-token-{os.geteuid()}"


def _facts(wanted: Recipe | None, failure: CotswoldError | None) -> dict[str, str]:
    """What must be the same on every rank."""
    import torch

    facts = {"Cotswold's version": __version__, "torch's version": torch.__version__.partition("+")[0]}
    facts["the recipe"] = "read" if failure is None else str(failure)
    if wanted is None:
        return facts
    return {**facts, **dict(_fields(wanted.model_dump(mode="json"), "the recipe's "))}


def _fields(table: Mapping[str, object], name: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{name}{key}.")
        else:
            yield f"{name}{key}", str(value)

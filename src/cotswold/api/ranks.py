"""The processes of a run: this one alone, ranks that it starts, or ranks started by a launcher.

Knows: the environment, grids as text, facts that ranks compare. Does not know: how ranks connect, training.
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
from cotswold.run import RUNS, RunDirectory

if TYPE_CHECKING:
    from cotswold.api.request import Request
    from cotswold.host import Token
    from cotswold.launch import Membership, World
    from cotswold.training.distributed import RankContext

Tell = Callable[[str], None]
"""Receives a message for the user."""
AUTO = "auto"
RANKS_PER_CORE = 4
"""Maximum processes that a call starts per core of this machine."""


def cores() -> int:
    """Return the number of cores granted to this process and its children together."""
    return granted_cores(environ={})


def override(grid: str) -> str:
    """Return the recipe override for a grid; always a string."""
    return f"mesh.grid={json.dumps(grid)}"


def requested_recipe(name: str | None, run: Path | None, overrides: Sequence[str], tell: Tell) -> Recipe:
    """Return the requested recipe, from a file, a shipped name or a resumed run, with the run's saved
    overrides.

    ``tell`` receives a message about overrides with wider effects.
    """
    if run is not None and (run / "recipe.toml").is_file():
        known = RunDirectory.open(run)
        return recipe.load(known.recipe if name is None else name, [*known.overrides, *overrides], tell)
    if name is None and run is not None:
        from cotswold.training.jobs.create import NO_RUN

        raise RunError(NO_RUN.format(run))
    if name is None:
        raise UserError(
            "give a recipe to train, or a run to resume: --run DIRECTORY --resume (Python: directory=, "
            "resume=True)"
        )
    return recipe.load(name, overrides, tell)


def directory_to_resume(request: Request, tell: Tell) -> Path | None:
    """Return the directory of the run that a request resumes, so that the run's grid and overrides apply.

    Without a directory it is `runs/` and the recipe's name; if that holds no run, it is the only run in
    `runs/` of a recipe with this name. Otherwise the request's own directory. Raises RunError if several
    runs are possible.
    """
    if not request.resume or request.directory is not None or request.recipe is None:
        return request.directory
    wanted = recipe.load(request.recipe, request.overrides)
    usual = RUNS / wanted.name
    if (usual / "recipe.toml").is_file():
        return usual
    if request.resume == "if_started":
        return None
    found = [each.parent for each in sorted(RUNS.glob("*/recipe.toml")) if _name_in(each) == wanted.name]
    if len(found) > 1:
        listed = ", ".join(map(str, found))
        raise RunError(
            f"there is no run in {usual}, and several runs of {wanted.name}: {listed}; choose one with --run "
            "(Python: directory=)"
        )
    if found:
        tell(f"resuming {found[0]}, the only run of {wanted.name} in {RUNS}")
    return found[0] if found else None


def _name_in(file: Path) -> str | None:
    """Return the name of a run's recipe; None if the recipe cannot be read."""
    try:
        return recipe.load(file).name
    except CotswoldError:
        return None


def local_grid(wanted: Recipe, tell: Tell) -> Grid:
    """Return the grid of ranks that this process starts; 1x1 if the recipe has none."""
    if wanted.mesh.grid is None or wanted.worker_grid is not None:  # workers lead their own ranks
        return Grid(1, 1)
    if wanted.mesh.grid != AUTO:
        return Grid.parse(wanted.mesh.grid)
    from cotswold.simulate import predicted_grids, this_machine

    tell("choosing the grid by the simulator's prediction")
    most = cores()
    return predicted_grids(this_machine(), wanted, [n for n in range(1, most + 1) if most % n == 0])[0]


def grid_of(wanted: Recipe, ranks: int, local_ranks: int) -> Grid:
    """Return the grid of each replica for ranks started by a launcher, ``local_ranks`` per host.

    An automatic choice depends on this host. Raises UserError if replicas and grid have another size.
    """
    replicas = wanted.mesh.replicas
    if replicas > 1:
        grid = Grid.parse(wanted.mesh.grid or "1x1")
        check_rank_count(replicas, grid, ranks)
        return grid
    if wanted.offloaded:
        raise UserError('training.offload = "disk" needs a single process; start one, or remove offload')
    if wanted.mesh.grid in (None, AUTO):
        from cotswold.simulate import predicted_grids, this_machine

        hosts = -(-ranks // local_ranks)
        machine = this_machine().model_copy(update={"hosts": hosts, "devices": local_ranks})
        return predicted_grids(machine, wanted, [ranks])[0]
    assert wanted.mesh.grid is not None, "asked above"
    grid = Grid.parse(wanted.mesh.grid)
    if grid.size != ranks:
        raise UserError(
            f"a {grid} grid needs {grid.size} ranks, but {ranks} were started; "
            "start that number, or use grid auto"
        )
    return grid


def check_rank_count(replicas: int, grid: Grid, ranks: int) -> None:
    """Raise UserError unless a number of ranks is that of all replicas of a grid."""
    if replicas * grid.size != ranks:
        each = "one process" if grid.size == 1 else f"a {grid} grid"
        raise UserError(
            f"{replicas} replicas of {each} need {replicas * grid.size} ranks, but {ranks} were started; "
            "start that number, or give another number of replicas"
        )


def context_of(
    members: Membership, world: World, replicas: int, grid: Grid, device: str, secret: Token | None
) -> RankContext:
    """Return the rank context of this process: its replica, and its place in the replica's grid.

    All ranks call this together.
    """
    from cotswold.mesh import Mesh
    from cotswold.mesh.ranks.replicas import replicated
    from cotswold.training.distributed import RankContext

    if replicas == 1:
        mesh = Mesh.of(grid, device, secret)
        return RankContext(members, mesh, world.local_rank, world.local_size)
    own, axis = replicated(replicas, grid, device, secret)
    return RankContext(members, None if grid.size == 1 else own, world.local_rank, world.local_size, axis)


def prepare(world: World) -> None:
    """Set the environment variables that torch reads on import: the threads of this rank."""
    from cotswold.launch import settings_of

    os.environ.update(settings_of(world, cores(), os.environ))


@contextmanager
def join_ranks(
    world: World, name: str | None, run: Path | None, overrides: Sequence[str], tell: Tell
) -> Iterator[RankContext]:
    """Join this rank to the others, which must have the same recipe and version, in a `with` block.

    Ranks authenticate by the token in COTSWOLD_TOKEN. If the launcher provides none, the first rank creates
    one in a file next to the run; all ranks must see that folder anyway to write into the run.
    """
    from cotswold.host import read_token, token_of
    from cotswold.launch import join
    from cotswold.training.devices import with_chosen_device

    wanted: Recipe | None = None
    failure: CotswoldError | None = None
    try:
        wanted = requested_recipe(name, run, overrides, told_once(world, tell))
    except CotswoldError as error:
        failure = error  # raised after all have joined, or others would wait for this rank
    timeout = recipe.schema.Mesh().timeout if wanted is None else wanted.mesh.timeout
    secret = token_of(os.environ) or read_token(token_file(run))
    facts = _facts(wanted, failure)
    note = "the last checkpoint is whole"
    with join(world, timeout_seconds=timeout, token=secret, facts=facts, note=note) as members:
        if wanted is None:
            assert failure is not None, "there is no recipe"
            raise failure
        chosen = str(grid_of(wanted, world.size, world.local_size))
        grid = Grid.parse(members.gather(chosen)[0])  # hosts differ, and might choose differently
        device = with_chosen_device(wanted).training.device.partition(":")[0]
        yield context_of(members, world, wanted.mesh.replicas, grid, device, secret)


def told_once(world: World | None, tell: Tell) -> Tell:
    """Return ``tell``, or in a rank whose messages another process shows a function that drops them."""
    is_shown = world is not None and (world.rank > 0 or world.launcher == "cotswold")
    return _ignore_message if is_shown else tell


def _ignore_message(sentence: str) -> None:
    """Drop a message."""


def token_file(run: Path | None) -> Path:
    """Return the file of the token by which ranks of a launcher authenticate; folders may be shared by
    users.
    """
    folder = RUNS if run is None else run.parent
    return folder / f".cotswold-token-{os.geteuid()}"


def _facts(wanted: Recipe | None, failure: CotswoldError | None) -> dict[str, str]:
    """Return the facts that must be equal on every rank."""
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

"""The registry of strategies: the entry of each name of `[training] strategy`.

Knows: names, entry points of other packages. Does not know: the runners that an entry builds.

The entries here name their functions as ``"module:function"``, so that a run imports only the modules of its
strategy. Another package adds an entry point to the group `cotswold.strategies`: a name, and an `Entry`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, cast

from cotswold.checkpoint import Checkpoint
from cotswold.data import Store
from cotswold.errors import RecipeError
from cotswold.host.processes import import_function
from cotswold.recipe import Recipe
from cotswold.run import Recorder, RunDirectory
from cotswold.training.distributed import Team
from cotswold.training.strategies.phases import Epochs

if TYPE_CHECKING:
    from cotswold.mesh import Mesh

GROUP = "cotswold.strategies"


class Runner(Protocol):
    """What drives a run: one for each kind of time."""

    @property
    def number(self) -> int:
        """How far the run is, in what its checkpoints are numbered by (steps, evaluations, samples)."""
        ...

    @property
    def parameters(self) -> int:
        """How many weights the network has."""
        ...

    def resume(self, checkpoint: Checkpoint) -> None:
        """Go on from a checkpoint; must not wait for other ranks, and be able to begin again. Raises
        CheckpointError where it is of another network or version."""
        ...

    def run(self) -> bool:
        """Train to the end (True), or until the recorder hears of a stop (False); saves in both cases."""
        ...


@dataclass(frozen=True)
class Setting:
    """What a job has ready when it asks for a runner."""

    recipe: Recipe
    run: RunDirectory
    store: Store
    team: Team
    recorder: Recorder
    epochs: Sequence[Epochs]
    """Those that the recipe asks for, and those that each prolongation adds."""
    fresh: bool
    """Whether there is no checkpoint to go on from."""
    open_things: ExitStack
    """Closed when training ends, however it does."""

    @property
    def mesh(self) -> Mesh:
        """The mesh of the ranks, where there are several."""
        assert self.team.mesh is not None, "a builder over ranks is taken where there are some"
        return self.team.mesh


Build = Callable[[Setting], Runner]


@dataclass(frozen=True)
class Entry:
    """The functions that build a strategy's runner, one for each place of its parameters.

    Each is a function, or ``"module:function"``. None: the strategy cannot have its parameters there.
    """

    in_memory: Build | str
    on_disk: Build | str | None = None
    on_mesh: Build | str | None = None

    def build(self, setting: Setting) -> Runner:
        """The runner of a recipe; raises RecipeError where the strategy cannot be where the recipe wants."""
        name = setting.recipe.training.strategy
        if setting.team.mesh is not None:
            chosen, where = self.on_mesh, "over several ranks; train it in one process (grid none)"
        elif setting.recipe.offloaded:
            chosen, where = self.on_disk, "from the disk; set training.offload=none"
        else:
            chosen, where = self.in_memory, "in memory"
        if chosen is None:
            raise RecipeError(f"strategy {name} cannot be trained {where}")
        build = cast(Build, import_function(chosen)) if isinstance(chosen, str) else chosen
        return build(setting)


_STACKS = "cotswold.training.strategies.build_stacks"
_SUPERVISED = "cotswold.training.strategies.build_supervised"
ENTRIES = {
    "greedy": Entry(
        f"{_STACKS}:greedy_in_memory",
        on_disk=f"{_STACKS}:greedy_on_disk",
        on_mesh=f"{_STACKS}:greedy_on_mesh",
    ),
    "joint": Entry(
        f"{_STACKS}:joint_in_memory", on_disk=f"{_STACKS}:joint_on_disk", on_mesh=f"{_STACKS}:joint_on_mesh"
    ),
    "supervised": Entry(f"{_SUPERVISED}:in_memory", on_mesh=f"{_SUPERVISED}:on_mesh"),
    "batch": Entry("cotswold.training.full_batch.strategy:build"),
    "downpour": Entry("cotswold.training.async_sgd.strategy:build"),
}
"""The strategies of Cotswold."""


def entry(name: str) -> Entry:
    """The entry of a strategy; raises RecipeError for a name that nobody has, or two packages."""
    if name in ENTRIES:
        return ENTRIES[name]
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = sorted({*ENTRIES, *entry_points(group=GROUP).names})
        raise RecipeError(f"there is no strategy {name!r}; there are {', '.join(known)}")
    points = {point.value: point for point in found}
    if len(points) > 1:
        origins = ", ".join(sorted(points))
        raise RecipeError(f"several packages bring strategy {name!r}: {origins}; remove all packages but one")
    try:
        loaded = next(iter(points.values())).load()
    except Exception as error:  # whatever it is, it is the package's
        raise RecipeError(
            f"the entry point {name!r} of {GROUP} cannot be loaded ({type(error).__name__}: {error}); mend "
            "or remove that package"
        ) from error
    if not isinstance(loaded, Entry):
        raise RecipeError(f"the entry point {name!r} of {GROUP} gives {loaded!r:.80}, which is no Entry")
    return loaded

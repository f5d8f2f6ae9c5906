"""The table of strategies: who trains a recipe, by the name in `[training] strategy`.

Knows: names, entry points of other packages. Does not know: what an entry builds.

Another package joins by an entry point in the group `cotswold.strategies`: a name, and an `Entry`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol

from cotswold.checkpoint import Checkpoint
from cotswold.data import Store
from cotswold.errors import RecipeError
from cotswold.recipe import Recipe
from cotswold.run import Recorder, RunDirectory
from cotswold.training.distributed import Team
from cotswold.training.strategies.phases import Epochs

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


Build = Callable[[Setting], Runner]


@dataclass(frozen=True)
class Entry:
    """How a strategy is built, one way a place where its parameters can be; None where it cannot be there."""

    in_memory: Build
    on_disk: Build | None = None
    on_mesh: Build | None = None

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
        return chosen(setting)


def entry(name: str) -> Entry:
    """The entry of a strategy; raises RecipeError for a name that nobody has, or two packages."""
    from cotswold.training.strategies.builtin import ENTRIES

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

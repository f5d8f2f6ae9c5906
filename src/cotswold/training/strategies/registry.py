"""The registry of strategies, by the names of `[training] strategy`.

Knows: names, entry points of other packages. Does not know: the trainers that a spec builds.

The specs here name their functions as ``"module:function"``, so that a run imports only the modules of its
strategy. Another package registers a strategy as an entry point of the group `cotswold.strategies`: a name,
and a `StrategyEntry`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, cast

from cotswold.checkpoint import Checkpoint
from cotswold.data import Store
from cotswold.errors import RecipeError
from cotswold.host.processes import import_function
from cotswold.recipe import Recipe
from cotswold.run import Recorder, RunDirectory
from cotswold.training.components import Components
from cotswold.training.distributed import RankContext
from cotswold.training.strategies.phases import Epochs

if TYPE_CHECKING:
    from cotswold.mesh import Mesh

GROUP = "cotswold.strategies"


class Runner(Protocol):
    """The object that drives a run, one class per measure of progress."""

    @property
    @abstractmethod
    def number(self) -> int:
        """The progress of the run in the unit that numbers its checkpoints (steps, evaluations, samples)."""
        ...

    @property
    @abstractmethod
    def parameters(self) -> int:
        """The number of weights of the network."""
        ...

    @abstractmethod
    def resume(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint; must not wait for other ranks, and must be repeatable.

        Raises CheckpointError for a checkpoint of another network or version.
        """
        ...

    @abstractmethod
    def run(self) -> bool:
        """Train to the end (True) or until a stop request (False); saves in both cases."""
        ...


@dataclass(frozen=True)
class TrainContext:
    """The objects that a job passes to a strategy builder.

    Args:
        recipe: The recipe of the run.
        run: The directory of the run.
        store: The prepared samples.
        rank_context: The ranks that train together.
        recorder: Receives metrics and events, and writes checkpoints.
    """

    recipe: Recipe
    run: RunDirectory
    store: Store
    rank_context: RankContext
    recorder: Recorder
    epochs: Sequence[Epochs]
    """The epochs of the recipe, followed by those of each extension."""
    fresh: bool
    """True if the run has no checkpoint to resume from."""
    exit_stack: ExitStack
    """The stack of resources that the job closes when training ends or fails."""
    components: Components = field(default_factory=Components)
    """The objects that the program gave in addition to the recipe."""

    @property
    def mesh(self) -> Mesh:
        """The mesh of the ranks; only for runs with several ranks."""
        assert self.rank_context.mesh is not None, "only sharded builders ask for the mesh"
        return self.rank_context.mesh


Build = Callable[[TrainContext], Runner]


@dataclass(frozen=True)
class StrategyEntry:
    """The functions that build a strategy's trainer, one per placement of its parameters.

    Each is a function or ``"module:function"``. None: the strategy does not support that placement.

    Args:
        in_memory: Builds the trainer with all parameters in this process.
        offloaded: Builds it with parameters in files.
        sharded: Builds the trainer of one of several ranks.
    """

    in_memory: Build | str
    offloaded: Build | str | None = None
    sharded: Build | str | None = None

    def build(self, context: TrainContext) -> Runner:
        """Return the trainer of a recipe; raises RecipeError if the strategy lacks the recipe's placement.

        Args:
            context: The objects of the run.
        """
        name = context.recipe.training.strategy
        if context.rank_context.mesh is not None:
            chosen, where = self.sharded, "over several ranks; use one process (grid none)"
        elif context.recipe.offloaded:
            chosen, where = self.offloaded, "with offloaded parameters; set training.offload=none"
        else:
            chosen, where = self.in_memory, "in memory"
        if chosen is None:
            raise RecipeError(f"strategy {name} cannot be trained {where}")
        build = cast(Build, import_function(chosen)) if isinstance(chosen, str) else chosen
        return build(context)


_STACKS = "cotswold.training.strategies.build_stacks"
_SUPERVISED = "cotswold.training.strategies.build_supervised"
ENTRIES = {
    "greedy": StrategyEntry(
        f"{_STACKS}:greedy_in_memory",
        offloaded=f"{_STACKS}:greedy_on_disk",
        sharded=f"{_STACKS}:greedy_on_mesh",
    ),
    "joint": StrategyEntry(
        f"{_STACKS}:joint_in_memory", offloaded=f"{_STACKS}:joint_on_disk", sharded=f"{_STACKS}:joint_on_mesh"
    ),
    "supervised": StrategyEntry(f"{_SUPERVISED}:in_memory", sharded=f"{_SUPERVISED}:build_sharded"),
    "batch": StrategyEntry("cotswold.training.full_batch.strategy:build"),
    "downpour": StrategyEntry("cotswold.training.async_sgd.strategy:build"),
}
"""The built-in strategies."""


def entry(name: str) -> StrategyEntry:
    """Return the spec of a strategy; raises RecipeError unless exactly one package registers the name."""
    if name in ENTRIES:
        return ENTRIES[name]
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = sorted({*ENTRIES, *entry_points(group=GROUP).names})
        raise RecipeError(f"unknown strategy {name!r}; use one of {', '.join(known)}")
    points = {point.value: point for point in found}
    if len(points) > 1:
        origins = ", ".join(sorted(points))
        raise RecipeError(f"several packages register strategy {name!r}: {origins}; keep only one of them")
    try:
        loaded = next(iter(points.values())).load()
    except Exception as error:  # any error is the package's
        raise RecipeError(
            f"the entry point {name!r} of {GROUP} cannot be loaded ({type(error).__name__}: {error}); fix "
            "or remove that package"
        ) from error
    if not isinstance(loaded, StrategyEntry):
        raise RecipeError(f"the entry point {name!r} of {GROUP} is {loaded!r:.80}, not a StrategyEntry")
    return loaded

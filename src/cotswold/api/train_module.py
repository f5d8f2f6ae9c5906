"""Training of a user's module and dataset, in this process or on ranks that construct both.

Knows: importable factories, messages to other processes, facts that ranks compare. Does not know: the
training.
"""

from __future__ import annotations

import copy
import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotswold import __version__
from cotswold.api.request import Resumed, is_factory
from cotswold.api.run_job import Outcome, RunObservers, run_job, train_on_ranks
from cotswold.api.threads import (
    compute_threads,
    own_environment,
    own_threads,
    preserve_random_states,
    threads_override,
    training_modes,
)
from cotswold.errors import UserError
from cotswold.geometry import Grid
from cotswold.ui.display import LoggingDisplay

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, Dataset

    from cotswold.launch import World
    from cotswold.recipe import Recipe
    from cotswold.recipe.schema import Cluster, LayerTraining, Mesh
    from cotswold.training.distributed import RankContext
    from cotswold.training.full_batch.module_batch import Factory

    UserData = Dataset[Any] | DataLoader[Any] | tuple[Any, ...]
    Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class ModuleRequest:
    """A module, or the name of a function that makes a module and dataset, with the training settings."""

    module: nn.Module | None
    factory: str | None
    dataset: UserData | None
    directory: Path | None
    loss: str | Loss
    validation: UserData | float | None
    training: LayerTraining
    cluster: Cluster
    mesh: Mesh
    resume: Resumed

    @classmethod
    def of(
        cls,
        given: object,
        dataset: object,
        directory: Path | None,
        loss: str | Loss | None,
        validation: UserData | float | None,
        strategy: str | None,
        settings: Mapping[str, object],
        threads: int | None,
        resume: Resumed,
        grid: str | None = None,
    ) -> ModuleRequest:
        """Construct a request from the arguments of `train`.

        Loss, settings and a validation fraction that are not given are taken from the resumed run. Raises
        UserError if arguments contradict each other, and RecipeError for settings that the strategy lacks.
        """
        threads_override(threads)  # validates threads
        values = {**settings, **({} if threads is None else {"threads": threads})}
        spread = {name: values.pop(name) for name in [*values] if name in CLUSTER_FIELDS}
        if isinstance(given, str):
            if not is_factory(given):
                raise UserError(
                    f"{given!r} does not name a function that makes a module; write package.module:function"
                )
            if isinstance(dataset, str | Path):
                directory = directory or Path(dataset)
                dataset = None
            if dataset is not None:
                raise UserError(f"{given} also makes the data set; omit the data set argument")
            directory = directory or Path("runs") / given.partition(":")[2]
            kept = _resumed_recipe(directory, resume)
            known = _loss(loss, kept, directory), _validation(validation, kept)
            learnt, cluster, mesh = training_section(strategy, values, spread, kept, grid)
            return cls(None, given, None, directory, *known, learnt, cluster, mesh, resume)
        _check_module(given)
        if dataset is None or isinstance(dataset, str | Path):
            raise UserError("a module needs a data set: train(module, dataset, loss=...)")
        module: Any = given
        samples: Any = dataset
        kept = _resumed_recipe(
            directory or Path("runs") / (type(given).__name__.lstrip("_") or "module"), resume
        )
        known = _loss(loss, kept, directory), _validation(validation, kept)
        learnt, cluster, mesh = training_section(strategy, values, spread, kept, grid)
        return cls(module, None, samples, directory, *known, learnt, cluster, mesh, resume)

    def make(self) -> None:
        """Call the factory in this process to make the module and dataset."""
        if self.factory is None:
            return
        from cotswold.training.jobs.factories import make

        self.module, self.dataset, own = make(self.factory)
        self.validation = self.validation if own is None else own

    @property
    def process_factory(self) -> Factory | None:
        """The factory for processes on other machines; None without one."""
        from cotswold.training.full_batch.module_batch import Factory

        if self.factory is None:
            return None
        loss = self.loss if isinstance(self.loss, str) else None
        return Factory(self.factory, loss, self.validation if isinstance(self.validation, float) else None)

    def new_module(self) -> nn.Module:
        """Return another module of the same kind, to be filled from a checkpoint."""
        if self.module is None:
            self.make()
        return copy.deepcopy(self.module)  # type: ignore[return-value]  # made above


def _check_module(given: object) -> None:
    """Raise UserError for a value that is not a module."""
    from torch import nn

    if given is None:
        raise UserError("give the module and its data set again: train(module, dataset, directory, ...)")
    if isinstance(given, type):
        raise UserError(f"{given.__name__} is a class; give an instance: {given.__name__}(...)")
    if not isinstance(given, nn.Module):
        raise UserError(f"{given!r:.80} is not a torch.nn.Module; loss and data set apply only to modules")


def _resumed_recipe(directory: Path, resume: Resumed) -> Recipe | None:
    """Return the recipe of the resumed run; None for a new or missing run."""
    from cotswold.recipe import load
    from cotswold.run import RunDirectory
    from cotswold.training.jobs.create import Resume, is_started

    if resume and resume != "if_started":  # fails here if the run is missing
        is_started(directory, Resume.ALWAYS, python=True)
    if not resume or not (directory / "recipe.toml").is_file():
        return None
    kept = load(RunDirectory.open(directory).recipe)
    return None if kept.network.module is None else kept


def _loss(loss: str | Loss | None, kept: Recipe | None, directory: Path | None) -> str | Loss:
    if loss is not None:
        return loss
    if kept is None:
        raise UserError('a module needs a loss: loss="cross_entropy", or a function of (output, target)')
    if kept.loss == "custom":
        raise UserError(
            f"the run in {directory} uses a custom loss, which its directory does not contain; pass "
            "the same again: loss=..."
        )
    return kept.loss


def _validation(validation: UserData | float | None, kept: Recipe | None) -> UserData | float | None:
    """Return the validation fraction of the resumed run; a validation dataset must be passed again."""
    from cotswold.recipe.schema import GivenData

    if validation is None and kept is not None and isinstance(kept.data, GivenData):
        return kept.data.validation if isinstance(kept.data.validation, float) else None
    return validation


CLUSTER_FIELDS = (
    *("workers", "processes", "servers", "replication_factor", "replication_factor_min", "topology"),
    *("flush_seconds", "ray_address", "ports", "controllers", "max_buckets", "spread_servers", "encrypt"),
    *("point_transfer", "backup_tasks", "link_megabits", "replay_run"),
    *("heartbeat_timeout", "unavailable_timeout", "metrics_address"),
)
"""Arguments of `train` that belong to `[cluster]`."""


def training_section(
    strategy: str | None,
    values: Mapping[str, object],
    spread: Mapping[str, object] | None = None,
    kept: Recipe | None = None,
    grid: str | None = None,
) -> tuple[LayerTraining, Cluster, Mesh]:
    """Return `[training]`, `[cluster]` and `[mesh]` of a module's run, with defaults from ``kept``.

    Only given fields of `[training]` count as set. Raises RecipeError for an unknown field or invalid value.
    """
    from cotswold.recipe import from_values
    from cotswold.recipe.schema import LayerTraining

    before = {} if kept is None else kept.training.model_dump(exclude={"strategy"})
    clustered = {} if kept is None else kept.cluster.model_dump()
    strategy = strategy or ("supervised" if kept is None else kept.training.strategy)
    cut = grid if grid is not None or kept is None else kept.worker_grid
    table: dict[str, object] = {
        "name": "module",
        "data": {"type": "dataset"},
        "network": {"module": "module"},
        "training": {
            "strategy": strategy,
            **{name: value for name, value in {**before, **values}.items() if value is not None},
        },
        "cluster": {k: v for k, v in {**clustered, **(spread or {})}.items() if v is not None},
        # with other strategies the ranks determine their grid
        "mesh": {"grid": cut} if strategy in ("batch", "downpour") and cut is not None else {},
    }
    made = from_values(table, "train()", CLUSTER_FIELDS if strategy in ("batch", "downpour") else ())
    found = made.training
    if not isinstance(found, LayerTraining):
        raise UserError(
            f"strategy {strategy} needs a recipe; train a module with supervised, batch or downpour"
        )
    return type(found).model_construct(_fields_set=set(values), **dict(found)), made.cluster, made.mesh


def train_module(
    request: ModuleRequest, observers: RunObservers, *, grid: str | None, restarts: int
) -> Outcome:
    """Train a module as requested, in the existing processes or in new ranks."""
    from cotswold.launch import world_of

    world = world_of(os.environ)
    if world is not None and world.size > 1:
        with own_environment(), own_threads(), training_modes(_device_of(request)):
            from cotswold.api import ranks as processes

            processes.prepare(world)
            request.make()
            with join_ranks(world, request, grid) as members:
                return _train(request, members, observers)
    leads_ranks = request.training.strategy in ("batch", "downpour")  # workers lead their own ranks
    shape = Grid(1, 1) if leads_ranks or grid in (None, "none") else Grid.parse(str(grid))
    if shape.size > 1:
        words = ModuleLaunch.from_request(request, shape)
        return train_on_ranks(
            words, Path(str(words.arguments_by_name["directory"])), shape, restarts, observers
        )
    if restarts:
        raise UserError("restarts needs several ranks; give a grid, such as 1x2")
    with compute_threads(request.training.threads, device=_device_of(request)):
        from cotswold.training.distributed import SINGLE_PROCESS

        request.make()
        return _train(request, SINGLE_PROCESS, observers)


def _device_of(request: ModuleRequest) -> str:
    """Return the device on which the module will be trained."""
    if request.module is None or "device" in request.training.model_fields_set:
        return request.training.device
    return str(next((each.device for each in request.module.parameters()), "cpu"))


def _train(request: ModuleRequest, rank_context: RankContext, observers: RunObservers) -> Outcome:
    from cotswold import training
    from cotswold.training.jobs.factories import imported

    assert request.module is not None and request.dataset is not None, "made before"
    resume, loss = training.Resume.ALWAYS if request.resume else training.Resume.NEVER, request.loss
    job = training.open_module_job(
        request.module,
        request.dataset,
        loss=imported(loss) if isinstance(loss, str) and ":" in loss else loss,
        factory=request.process_factory,
        directory=request.directory,
        settings=request.training,
        cluster=request.cluster,
        mesh=request.mesh,
        validation=request.validation,
        resume=training.Resume.IF_STARTED if request.resume == "if_started" else resume,
        rank_context=rank_context,
    )
    display = observers.display if rank_context.is_main else LoggingDisplay()
    if rank_context.is_main and job.resume_note is not None:
        display.show(job.resume_note)
    try:
        with preserve_random_states():
            return run_job(job, rank_context, request.directory, display, observers)
    finally:
        request.module.eval()


@dataclass(frozen=True)
class ModuleLaunch:
    """The command line for the ranks of a module's run: one argument, a JSON object."""

    arguments_by_name: Mapping[str, object]
    module = "cotswold.api.module_rank"
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
        }
    )
    """The module search path of this process, including the folder of a script, for the ranks."""

    @classmethod
    def from_request(cls, request: ModuleRequest, grid: Grid) -> ModuleLaunch:
        """Convert a request. Raises UserError for values that cannot be sent to other processes."""
        if request.factory is None:
            raise UserError(
                "a module object cannot be sent to other processes; give a function that makes it and "
                'the data set in each: train("package.module:function", loss=..., grid=...)'
            )
        if not isinstance(request.loss, str):
            raise UserError('a loss for several processes must be a name, or "package.module:function"')
        if request.validation is not None and not isinstance(request.validation, float | int):
            raise UserError(
                f"{request.factory} must also make the validation set; return it as a third value"
            )
        if request.factory.startswith("__main__:") or request.loss.startswith("__main__:"):
            raise UserError(
                f"{request.factory} is in the main program, which other processes do not run; move it "
                "to a module next to the program, and give that"
            )
        from cotswold.training.jobs.factories import imported

        imported(request.factory)  # fails before processes start
        return cls(
            {
                "factory": request.factory,
                "directory": str(request.directory),
                "loss": request.loss,
                "validation": request.validation,
                "strategy": request.training.strategy,
                "settings": request.training.model_dump(exclude={"strategy"}, exclude_unset=True),
                "resume": request.resume,
                "grid": str(grid),
            }
        )

    def arguments(self, *, is_restart: bool, quiet: bool) -> list[str]:
        """Return the argument of each rank."""
        resume = "if_started" if is_restart else self.arguments_by_name["resume"]
        return [json.dumps({**self.arguments_by_name, "resume": resume, "quiet": quiet})]


@contextmanager
def join_ranks(world: World, request: ModuleRequest, grid: str | None) -> Iterator[RankContext]:
    """Join this rank to the others, which must have the same module and settings, in a `with` block."""
    import torch

    from cotswold.api.ranks import token_file
    from cotswold.host import read_token, token_of
    from cotswold.launch import join
    from cotswold.mesh import Mesh
    from cotswold.recipe.schema import Mesh as Section
    from cotswold.training.distributed import RankContext

    assert request.module is not None, "made before"
    rows = max(each for each in range(1, math.isqrt(world.size) + 1) if world.size % each == 0)
    shape = Grid(rows, world.size // rows) if grid is None else Grid.parse(grid)
    if shape.size != world.size:
        raise UserError(
            f"a {shape} grid needs {shape.size} ranks, but {world.size} were started; start that number"
        )
    facts = {
        "Cotswold's version": __version__,
        "torch's version": torch.__version__.partition("+")[0],
        "the module": str({name: list(value.shape) for name, value in request.module.state_dict().items()}),
        "the settings": request.training.model_dump_json(),
        "the grid": str(shape),
    }
    secret = token_of(os.environ) or read_token(token_file(request.directory))
    with join(world, timeout_seconds=Section().timeout, token=secret, facts=facts) as members:
        mesh = Mesh.of(shape, request.training.device.partition(":")[0], secret)
        yield RankContext(members, mesh, world.local_rank, world.local_size)

"""Training a module and a data set of the user's own: in this process, or over ranks that make both anew.

Knows: factories that can be imported, how other processes are told of them, what ranks must agree on. Does
not know: how anything is trained.
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
from cotswold.api.run_job import Hearing, Outcome, carried, on_ranks
from cotswold.api.threads import (
    computing,
    own_environment,
    own_modes,
    own_random,
    own_threads,
    threads_override,
)
from cotswold.errors import UserError
from cotswold.geometry import Grid
from cotswold.ui.display import Quiet

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, Dataset

    from cotswold.launch import World
    from cotswold.recipe import Recipe
    from cotswold.recipe.schema import Cluster, LayerTraining, Mesh
    from cotswold.training.distributed import Team
    from cotswold.training.full_batch.module_batch import Factory

    Given = Dataset[Any] | DataLoader[Any] | tuple[Any, ...]
    Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class ModuleRequest:
    """A module, or the name of a function that makes one and its data set, and how it is to be trained."""

    module: nn.Module | None
    factory: str | None
    dataset: Given | None
    directory: Path | None
    loss: str | Loss
    validation: Given | float | None
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
        validation: Given | float | None,
        strategy: str | None,
        settings: Mapping[str, object],
        threads: int | None,
        resume: Resumed,
        grid: str | None = None,
    ) -> ModuleRequest:
        """What the words of `train` ask for; raises UserError where they do not fit together, RecipeError for
        settings that the strategy does not have.

        A run that is resumed says itself what is not given again: loss, settings, a fraction for validation.
        """
        threads_override(threads)  # refuses what is no number of threads
        values = {**settings, **({} if threads is None else {"threads": threads})}
        spread = {name: values.pop(name) for name in [*values] if name in CLUSTER_FIELDS}
        if isinstance(given, str):
            if not is_factory(given):
                raise UserError(
                    f"{given!r} names no function that makes a module; write package.module:function"
                )
            if isinstance(dataset, str | Path):
                directory = directory or Path(dataset)
                dataset = None
            if dataset is not None:
                raise UserError(f"{given} makes the data set as well; leave it out here")
            directory = directory or Path("runs") / given.partition(":")[2]
            kept = _kept(directory, resume)
            known = _loss(loss, kept, directory), _validation(validation, kept)
            learnt, cluster, mesh = training_section(strategy, values, spread, kept, grid)
            return cls(None, given, None, directory, *known, learnt, cluster, mesh, resume)
        _check_module(given)
        if dataset is None or isinstance(dataset, str | Path):
            raise UserError("a module is trained on a data set: train(module, dataset, loss=...)")
        module: Any = given
        samples: Any = dataset
        kept = _kept(directory or Path("runs") / (type(given).__name__.lstrip("_") or "module"), resume)
        known = _loss(loss, kept, directory), _validation(validation, kept)
        learnt, cluster, mesh = training_section(strategy, values, spread, kept, grid)
        return cls(module, None, samples, directory, *known, learnt, cluster, mesh, resume)

    def make(self) -> None:
        """Have the factory make the module and the data set, in this process."""
        if self.factory is None:
            return
        from cotswold.training.jobs.factories import make

        self.module, self.dataset, own = make(self.factory)
        self.validation = self.validation if own is None else own

    @property
    def kept_factory(self) -> Factory | None:
        """What processes of other machines are told; None without a factory."""
        from cotswold.training.full_batch.module_batch import Factory

        if self.factory is None:
            return None
        loss = self.loss if isinstance(self.loss, str) else None
        return Factory(self.factory, loss, self.validation if isinstance(self.validation, float) else None)

    def made(self) -> nn.Module:
        """Another module of the same kind, to be filled from a checkpoint."""
        if self.module is None:
            self.make()
        return copy.deepcopy(self.module)  # type: ignore[return-value]  # made above


def _check_module(given: object) -> None:
    """Raise UserError for what is no module that could be trained."""
    from torch import nn

    if given is None:
        raise UserError("give the module and its data set again: train(module, dataset, directory, ...)")
    if isinstance(given, type):
        raise UserError(f"{given.__name__} is a class; give a module, which it makes: {given.__name__}(...)")
    if not isinstance(given, nn.Module):
        raise UserError(f"{given!r:.80} is no torch.nn.Module; a loss and a data set go with one")


def _kept(directory: Path, resume: Resumed) -> Recipe | None:
    """The recipe of the run that is resumed; None where one begins, or none is there."""
    from cotswold.recipe import load
    from cotswold.run import RunDirectory
    from cotswold.training.jobs.create import Resume, check_started

    if resume and resume != "if_started":  # before what the run would say itself is missed
        check_started(directory, Resume.ALWAYS, python=True)
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
            f"the run in {directory} is trained by a loss of the program's own, which it cannot keep; give "
            "the same again: loss=..."
        )
    return kept.loss


def _validation(validation: Given | float | None, kept: Recipe | None) -> Given | float | None:
    """A data set that the run was validated on must be given again, which is said once all is known."""
    from cotswold.recipe.schema import GivenData

    if validation is None and kept is not None and isinstance(kept.data, GivenData):
        return kept.data.validation if isinstance(kept.data.validation, float) else None
    return validation


CLUSTER_FIELDS = (
    *("workers", "processes", "servers", "server_copies", "server_copies_min", "replication"),
    *("flush_seconds", "address", "ports"),
    *(
        "parameter_servers",
        "buckets",
        "spread_servers",
        "encrypt",
        "travel",
        "copies",
        "link_megabits",
        "replay",
        "silence",
        "wait",
        "metrics",
    ),
)
"""What `train` takes for `[cluster]`, by name."""


def training_section(
    strategy: str | None,
    values: Mapping[str, object],
    spread: Mapping[str, object] | None = None,
    kept: Recipe | None = None,
    grid: str | None = None,
) -> tuple[LayerTraining, Cluster, Mesh]:
    """`[training]`, `[cluster]` and `[mesh]` of a module's run, what is not given as it was ``kept``; of the
    fields of `[training]` only those that are given count as set. Raises RecipeError for a field or a value
    that it does not have."""
    from cotswold.recipe import from_values
    from cotswold.recipe.schema import LayerTraining

    before = {} if kept is None else kept.training.model_dump(exclude={"strategy"})
    clustered = {} if kept is None else kept.cluster.model_dump()
    strategy = strategy or ("supervised" if kept is None else kept.training.strategy)
    cut = grid if grid is not None or kept is None else kept.gang
    table: dict[str, object] = {
        "name": "module",
        "data": {"type": "dataset"},
        "network": {"module": "module"},
        "training": {
            "strategy": strategy,
            **{name: value for name, value in {**before, **values}.items() if value is not None},
        },
        "cluster": {k: v for k, v in {**clustered, **(spread or {})}.items() if v is not None},
        # of other strategies the ranks know their grid themselves
        "mesh": {"grid": cut} if strategy in ("batch", "downpour") and cut is not None else {},
    }
    made = from_values(table, "train()", CLUSTER_FIELDS if strategy in ("batch", "downpour") else ())
    found = made.training
    if not isinstance(found, LayerTraining):
        raise UserError(
            f"strategy {strategy} trains what a recipe describes; a module is trained by supervised, batch "
            "or downpour"
        )
    return type(found).model_construct(_fields_set=set(values), **dict(found)), made.cluster, made.mesh


def carry_out_module(request: ModuleRequest, hearing: Hearing, *, grid: str | None, restarts: int) -> Outcome:
    """Train a module as requested, in the processes that are there or that are wanted."""
    from cotswold.launch import world_of

    world = world_of(os.environ)
    if world is not None and world.size > 1:
        with own_environment(), own_threads(), own_modes(_device_of(request)):
            from cotswold.api import ranks as processes

            processes.prepare(world)
            request.make()
            with team(world, request, grid) as members:
                return _trained(request, members, hearing)
    gangs = request.training.strategy in ("batch", "downpour")  # workers lead ranks of their own
    shape = Grid(1, 1) if gangs or grid in (None, "none") else Grid.parse(str(grid))
    if shape.size > 1:
        words = ModuleWords.from_request(request, shape)
        return on_ranks(words, Path(str(words.given["directory"])), shape, restarts, hearing)
    if restarts:
        raise UserError("restarts is for several processes; give a grid, such as 1x2")
    with computing(request.training.threads, device=_device_of(request)):
        from cotswold.training.distributed import SOLO

        request.make()
        return _trained(request, SOLO, hearing)


def _device_of(request: ModuleRequest) -> str:
    """Where the module will be trained."""
    if request.module is None or "device" in request.training.model_fields_set:
        return request.training.device
    return str(next((each.device for each in request.module.parameters()), "cpu"))


def _trained(request: ModuleRequest, team: Team, hearing: Hearing) -> Outcome:
    from cotswold import training
    from cotswold.training.jobs.factories import imported

    assert request.module is not None and request.dataset is not None, "made before"
    resume, loss = training.Resume.ALWAYS if request.resume else training.Resume.NEVER, request.loss
    job = training.open_module_job(
        request.module,
        request.dataset,
        loss=imported(loss) if isinstance(loss, str) and ":" in loss else loss,
        factory=request.kept_factory,
        directory=request.directory,
        settings=request.training,
        cluster=request.cluster,
        mesh=request.mesh,
        validation=request.validation,
        resume=training.Resume.IF_STARTED if request.resume == "if_started" else resume,
        team=team,
    )
    display = hearing.display if team.is_main else Quiet()
    if team.is_main and job.resume_note is not None:
        display.say(job.resume_note)
    try:
        with own_random():
            return carried(job, team, request.directory, display, hearing)
    finally:
        request.module.eval()


@dataclass(frozen=True)
class ModuleWords:
    """What the ranks of a module's run are started with: one word, a JSON object."""

    given: Mapping[str, object]
    module = "cotswold.api.module_rank"
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            "PYTHONPATH": os.pathsep.join(str(Path(each).absolute()) for each in sys.path)
        }
    )
    """Where this process looks for modules, also beside a script: there the ranks look as well."""

    @classmethod
    def from_request(cls, request: ModuleRequest, grid: Grid) -> ModuleWords:
        """Those of a request; raises UserError for what other processes cannot be told."""
        if request.factory is None:
            raise UserError(
                "a module that is there cannot be sent to other processes; name a function that makes it and "
                'the data set in each: train("package.module:function", loss=..., grid=...)'
            )
        if not isinstance(request.loss, str):
            raise UserError('a loss for other processes is a name, or "package.module:function"')
        if request.validation is not None and not isinstance(request.validation, float | int):
            raise UserError(
                f"{request.factory} makes the validation set as well; have it return a third value"
            )
        if request.factory.startswith("__main__:") or request.loss.startswith("__main__:"):
            raise UserError(
                f"{request.factory} is in the program itself, which other processes do not run; put what "
                "they need into a module beside it, and name that"
            )
        from cotswold.training.jobs.factories import imported

        imported(request.factory)  # what can be known is said before processes start
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

    def of(self, *, again: bool, quiet: bool) -> list[str]:
        """The word for each."""
        resume = "if_started" if again else self.given["resume"]
        return [json.dumps({**self.given, "resume": resume, "quiet": quiet})]


@contextmanager
def team(world: World, request: ModuleRequest, grid: str | None) -> Iterator[Team]:
    """This rank among those that were started, all with the same module and settings; for a `with` block."""
    import torch

    from cotswold.api.ranks import token_file
    from cotswold.host import token_in, token_of
    from cotswold.launch import join
    from cotswold.mesh import Mesh
    from cotswold.recipe.schema import Mesh as Section
    from cotswold.training.distributed import Team

    assert request.module is not None, "made before"
    rows = max(each for each in range(1, math.isqrt(world.size) + 1) if world.size % each == 0)
    shape = Grid(rows, world.size // rows) if grid is None else Grid.parse(grid)
    if shape.size != world.size:
        raise UserError(
            f"a {shape} grid has {shape.size} ranks, and {world.size} were started; start as many"
        )
    facts = {
        "Cotswold's version": __version__,
        "torch's version": torch.__version__.partition("+")[0],
        "the module": str({name: list(value.shape) for name, value in request.module.state_dict().items()}),
        "the settings": request.training.model_dump_json(),
        "the grid": str(shape),
    }
    secret = token_of(os.environ) or token_in(token_file(request.directory))
    with join(world, timeout_seconds=Section().timeout, token=secret, facts=facts) as members:
        mesh = Mesh.of(shape, request.training.device.partition(":")[0], secret)
        yield Team(members, mesh, world.local_rank, world.local_size)

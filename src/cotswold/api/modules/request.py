"""A request to train a user's module, as the caller of `train` expressed it.

Knows: importable factories, settings by name or as a strategy object, settings of a resumed run. Does not
know: the processes, the training.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cotswold.api.request import Resumed, is_factory
from cotswold.errors import UserError
from cotswold.recipe.schema.training import strategy_of
from cotswold.recipe.strategies import STRATEGY_OBJECTS, StrategyObject
from cotswold.run import RUNS

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import DataLoader, Dataset

    from cotswold.recipe import Recipe
    from cotswold.recipe.schema import Cluster, LayerTraining, Mesh
    from cotswold.training.components import Components
    from cotswold.training.full_batch.module_batch import Factory

    UserData = Dataset[Any] | DataLoader[Any] | tuple[Any, ...]
    Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class ModuleRequest:
    """A module, or the name of a function that makes a module and dataset, with the training settings."""

    module: nn.Module | None
    factory: str | None
    dataset: UserData | None
    directory: Path
    loss: str | Loss
    validation: UserData | float | None
    training: LayerTraining
    cluster: Cluster
    mesh: Mesh
    resume: Resumed
    components: Components | None = field(default=None)

    @classmethod
    def of(
        cls,
        given: object,
        dataset: object,
        *,
        directory: Path | None,
        loss: str | Loss | None,
        validation: UserData | float | None,
        strategy: str | StrategyObject | None,
        settings: Mapping[str, object],
        resume: Resumed,
        components: Components | None = None,
    ) -> ModuleRequest:
        """Construct a request from the arguments of `train`; ``settings`` are fields of any table.

        Loss, settings and a validation fraction that are not given are taken from the resumed run. Raises
        UserError if arguments contradict each other, and RecipeError for settings that the strategy lacks.
        """
        factory: str | None = None
        if isinstance(given, str):
            if not is_factory(given):
                raise UserError(
                    f"{given!r} does not name a function that makes a module (package.module:function); "
                    f"for a recipe, call train_recipe({given!r}, ...)"
                )
            if dataset is not None:
                raise UserError(f"{given} also makes the data set; omit the data set argument")
            factory, name = given, given.partition(":")[2]
        else:
            _check_module(given)
            if dataset is None or isinstance(dataset, str | Path):
                raise UserError("a module needs a data set: train(module, dataset, loss=...)")
            name = type(given).__name__.lstrip("_") or "module"
        place = directory or RUNS / name
        kept = _resumed_recipe(place, resume)
        module: Any = None if factory else given
        samples: Any = dataset
        training, cluster, mesh = sections_of(strategy, settings, kept)
        _check_settings_of_own(training, components)
        return cls(
            module,
            factory,
            samples,
            place,
            _loss(loss, kept, directory),
            _validation(validation, kept),
            training,
            cluster,
            mesh,
            resume,
            components,
        )

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

    @property
    def device(self) -> str:
        """The device on which the module will be trained."""
        if self.module is None or "device" in self.training.model_fields_set:
            return self.training.device
        return str(next((each.device for each in self.module.parameters()), "cpu"))

    def new_module(self) -> nn.Module:
        """Return another module of the same kind, to be filled from a checkpoint."""
        if self.module is None:
            self.make()
        return copy.deepcopy(self.module)  # type: ignore[return-value]  # made above


def _check_module(given: object) -> None:
    """Raise UserError for a value that is not a module."""
    from torch import nn

    from cotswold.recipe import Recipe

    if given is None:
        raise UserError("give the module and its data set again: train(module, dataset, directory=..., ...)")
    if isinstance(given, type):
        raise UserError(f"{given.__name__} is a class; give an instance: {given.__name__}(...)")
    if isinstance(given, Recipe | Path):
        raise UserError(f"{given!r:.80} is a recipe; call train_recipe(recipe, directory, ...)")
    if not isinstance(given, nn.Module):
        raise UserError(f"{given!r:.80} is not a torch.nn.Module; for a recipe, call train_recipe")


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
    if isinstance(loss, type):
        raise UserError(f"the loss {loss.__name__} is a class; give an object: {loss.__name__}()")
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


def _check_settings_of_own(training: LayerTraining, components: Components | None) -> None:
    """Raise UserError for given settings that an optimiser object of the program replaces."""
    from cotswold.recipe.schema.optimizers import OPTIMIZER_FIELDS

    if components is None or components.optimizer is None:
        return
    own = ("optimizer", *OPTIMIZER_FIELDS)
    if given := [name for name in own if name in training.model_fields_set]:
        raise UserError(
            f"{given[0]} is of an optimizer by name, but optimizer is an object, which has its own settings; "
            f"remove {given[0]}"
        )
    schedule = [name for name in ("schedule", "warmup") if name in training.model_fields_set]
    if schedule:
        raise UserError(
            f"{schedule[0]} belongs to an optimizer by name; with an optimizer object, give scheduler a "
            "function that makes a scheduler from it, or remove it"
        )


def sections_of(
    strategy: str | StrategyObject | None, settings: Mapping[str, object], kept: Recipe | None = None
) -> tuple[LayerTraining, Cluster, Mesh]:
    """Return `[training]`, `[cluster]` and `[mesh]` of a module's run, with defaults from ``kept``.

    Only given fields of `[training]` count as set. Raises RecipeError for an unknown field or invalid value,
    and UserError if a field is in ``settings`` and in the strategy object.
    """
    from cotswold.recipe import from_values
    from cotswold.recipe.schema import LayerTraining
    from cotswold.recipe.schema.optimizers import OPTIMIZER_FIELDS
    from cotswold.training.devices import with_chosen_device

    tables = _tables(strategy, settings, kept)
    before: dict[str, dict[str, object]] = {}
    if kept is not None:
        before = {
            "training": kept.training.model_dump(exclude={"strategy"}),
            "cluster": kept.cluster.model_dump(),
            "mesh": kept.mesh.model_dump(),
        }
        name = tables["training"].get("optimizer")
        if name is not None and name != before["training"].get("optimizer"):  # the fields are another's
            before["training"] = {
                field: value for field, value in before["training"].items() if field not in OPTIMIZER_FIELDS
            }
    merged = {
        table: {
            field: value for field, value in {**before.get(table, {}), **own}.items() if value is not None
        }
        for table, own in tables.items()
    }
    wanted = {"name": "module", "data": {"type": "dataset"}, "network": {"module": "module"}, **merged}
    made = with_chosen_device(from_values(wanted, "train()"))
    found = made.training
    assert isinstance(found, LayerTraining), "a strategy of STRATEGY_OBJECTS"
    given = set(tables["training"]) - {"strategy"}
    return type(found).model_construct(_fields_set=given, **dict(found)), made.cluster, made.mesh


def _tables(
    strategy: object, settings: Mapping[str, object], kept: Recipe | None
) -> dict[str, dict[str, object]]:
    """Return the given fields by table; ``training`` includes the name of the strategy."""
    if isinstance(strategy, StrategyObject):
        kind = type(strategy)
        tables = strategy.given_fields()
        name = next(name for name, each in STRATEGY_OBJECTS.items() if issubclass(kind, each))
    elif strategy is None or isinstance(strategy, str):
        name = strategy or ("supervised" if kept is None else kept.training.strategy)
        if name not in STRATEGY_OBJECTS and strategy_of({"strategy": name}) is not None:
            others = ", ".join(STRATEGY_OBJECTS)
            raise UserError(f"strategy {name} needs a recipe; a module is trained by one of {others}")
        kind = STRATEGY_OBJECTS.get(name, STRATEGY_OBJECTS["supervised"])
        tables = kind.no_fields()
    else:
        names = ", ".join(each.__name__ for each in STRATEGY_OBJECTS.values())
        raise UserError(f"strategy must be a name, or one of {names}, got {strategy!r:.80}")
    twice = [each for each in settings if any(each in fields for fields in tables.values())]
    if twice:
        raise UserError(f"{twice[0]} is given twice, to train() and to {kind.__name__}(); remove one of them")
    for field_name, value in settings.items():
        tables.setdefault(kind.table_of(field_name), {})[field_name] = value
    tables["training"] = {"strategy": name, **tables["training"]}
    return tables

"""Strategies as Python objects: the fields of `[training]`, `[cluster]` and `[mesh]` in one class each.

Knows: which tables a strategy reads. Does not know: defaults and units (the tables), what a strategy does.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import ValidationError

from cotswold.errors import RecipeError
from cotswold.recipe.docstrings import docstring, signature
from cotswold.recipe.schema.cluster import Cluster
from cotswold.recipe.schema.fields import Section
from cotswold.recipe.schema.tables import Mesh, WorkerMesh
from cotswold.recipe.schema.training import (
    BatchTraining,
    DownpourTraining,
    SharedTraining,
    SupervisedTraining,
)

TABLES: Mapping[str, type[Section]] = {"training": SharedTraining, "cluster": Cluster, "mesh": WorkerMesh}
"""The tables of a recipe whose fields a strategy object may have."""


class StrategyObject(Section):
    """Base class of strategies for `cotswold.train`: a strategy and its settings.

    Raises:
        RecipeError: if a field is unknown or has an invalid value; the message names the field.
    """

    def __init__(self, *values: object, **fields: object) -> None:
        if values:
            name = type(self).__name__
            raise RecipeError(
                f"{name}() takes its fields by name, such as {name}(seed=1), not {values[0]!r:.80}"
            )
        try:
            super().__init__(**fields)
        except ValidationError as error:
            from cotswold.recipe.error_messages import describe_error

            raise RecipeError(
                f"{type(self).__name__}(){describe_error(error, '', (), type(self))}"
            ) from error
        object.__setattr__(self, "__pydantic_fields_set__", set(fields))  # without defaults of the optimizer

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # copies are validated without it

    @classmethod
    def __pydantic_init_subclass__(cls, **options: object) -> None:
        """Let `help`, `?` and `inspect.signature` show every field of a strategy."""
        cls.__doc__, cls.__signature__ = docstring(cls), signature(cls)

    def given_fields(self) -> dict[str, dict[str, object]]:
        """Return the fields that were set, by the name of their table."""
        owners = {name: self._owner(table) for name, table in TABLES.items() if isinstance(self, table)}
        return {
            name: {
                field: getattr(self, field) for field in owner.model_fields if field in self.model_fields_set
            }
            for name, owner in owners.items()
        }

    @classmethod
    def no_fields(cls) -> dict[str, dict[str, object]]:
        """Return an empty mapping for each table of the strategy."""
        return {name: {} for name, table in TABLES.items() if issubclass(cls, table)}

    @classmethod
    def table_of(cls, field: str) -> str:
        """Return the name of the table with a field; ``training`` for an unknown field."""
        owners = {name: cls._owner(table) for name, table in TABLES.items() if issubclass(cls, table)}
        return next((name for name, owner in owners.items() if field in owner.model_fields), "training")

    @classmethod
    def _owner(cls, table: type[Section]) -> type[Section]:
        """Return the most derived class of a table that is not a strategy object."""
        found = [
            each for each in cls.__mro__ if issubclass(each, table) and not issubclass(each, StrategyObject)
        ]
        return found[0]


class Supervised(StrategyObject, Mesh, SupervisedTraining):
    """Training by mini-batches with any optimiser, in one process, data-parallel, or on a grid of processes.

    The fields are those of `[training]` for strategy ``supervised``, and of `[mesh]`.
    """


class FullBatch(StrategyObject, WorkerMesh, Cluster, BatchTraining):
    """Optimisation of the loss of the whole data set, by L-BFGS or conjugate gradients.

    The fields are those of `[training]` for strategy ``batch``, of `[cluster]` and of `[mesh]`.
    """


class Downpour(StrategyObject, WorkerMesh, Cluster, DownpourTraining):
    """Asynchronous training by replicas (``workers``) that push gradients to parameter servers.

    The fields are those of `[training]` for strategy ``downpour``, of `[cluster]` and of `[mesh]`.
    """


STRATEGY_OBJECTS: Mapping[str, type[StrategyObject]] = {
    "supervised": Supervised,
    "batch": FullBatch,
    "downpour": Downpour,
}
"""The strategies that train a module, by their names in recipes."""

"""The optimisers of strategy supervised: their names, their fields and the defaults of these.

Knows: which fields each optimiser has. Does not know: torch, what an optimiser computes.

A new optimiser of torch takes a name in `OptimizerName` and a row in `OPTIMIZERS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OptimizerName = Literal["sgd", "adam", "adamw", "nadam", "radam", "rmsprop", "adagrad", "muon", "custom"]

_ADAM = {"learning_rate": 0.001, "betas": (0.9, 0.999), "eps": 1e-8}


@dataclass(frozen=True)
class OptimizerFields:
    """One optimiser: its class in `torch.optim`, and the defaults of its fields.

    Args:
        torch_name: Name of the class in `torch.optim`.
        defaults: Default of each field that the optimiser has, `learning_rate` included.
        moments: Number of tensors that it keeps for each parameter.
    """

    torch_name: str
    defaults: Mapping[str, object]
    moments: int


OPTIMIZERS: Mapping[str, OptimizerFields] = {
    "sgd": OptimizerFields(
        "SGD", {"learning_rate": 0.05, "weight_decay": 0.0, "momentum": 0.9, "nesterov": False}, 1
    ),
    "adam": OptimizerFields("Adam", {**_ADAM, "weight_decay": 0.0}, 2),
    "adamw": OptimizerFields("AdamW", {**_ADAM, "weight_decay": 0.01}, 2),
    "nadam": OptimizerFields("NAdam", {**_ADAM, "learning_rate": 0.002, "weight_decay": 0.0}, 2),
    "radam": OptimizerFields("RAdam", {**_ADAM, "weight_decay": 0.0}, 2),
    "rmsprop": OptimizerFields(
        "RMSprop",
        {"learning_rate": 0.001, "weight_decay": 0.0, "momentum": 0.0, "alpha": 0.99, "eps": 1e-8},
        2,
    ),
    "adagrad": OptimizerFields("Adagrad", {"learning_rate": 0.01, "weight_decay": 0.0, "eps": 1e-10}, 1),
    "muon": OptimizerFields("Muon", {**_ADAM, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True}, 2),
    "custom": OptimizerFields("", {}, 2),
}
"""All optimisers. A field with the default None in the schema exists for some of them only. ``custom``
is an optimiser of a Python program, which has its own settings.
"""

OPTIMIZER_FIELDS = tuple(dict.fromkeys(field for each in OPTIMIZERS.values() for field in each.defaults))
"""Every field that at least one optimiser has."""


def with_defaults(values: Mapping[str, object]) -> dict[str, object]:
    """Return the values of a `[training]` with the defaults of its optimiser.

    Raises:
        ValueError: if a field is given that the optimiser does not have.
    """
    found = {
        name: value for name, value in values.items() if value is not None or name not in OPTIMIZER_FIELDS
    }
    name = found.get("optimizer", "sgd")
    chosen = OPTIMIZERS.get(name) if isinstance(name, str) else None
    if chosen is None:  # the type of the field reports it
        return found
    strange = [field for field in OPTIMIZER_FIELDS if field in found and field not in chosen.defaults]
    if strange and name == "custom":
        raise ValueError(
            f'optimizer "custom" is an optimiser of a Python program, which has its own {strange[0]}; remove '
            f"{strange[0]}"
        )
    if strange:
        has = [other for other, each in OPTIMIZERS.items() if strange[0] in each.defaults]
        raise ValueError(
            f'optimizer "{name}" has no {strange[0]}; remove it, or use an optimizer that has it '
            f"({', '.join(has)}). The fields of {name} are {', '.join(chosen.defaults)}"
        )
    return {**chosen.defaults, **found}

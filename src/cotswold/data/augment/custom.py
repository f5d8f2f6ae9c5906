"""A user-defined transform, by name.

Knows: the import of a function, checks of its result. Does not know: its effect.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import ClassVar

import numpy as np

from cotswold.data.augment.keyed_random import Float32, Keys, derived
from cotswold.errors import UserError, describe_exception


@dataclass(frozen=True)
class Custom:
    """A user-defined ``function``, named ``module:function``.

    The function receives values (image, channel, y, x), keys (image,) and ``parameters`` by name. It returns
    float32 values of the same shape.
    """

    name: ClassVar[str] = "custom"
    function: str
    parameters: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _import_function(self.function)

    def changed(self, values: Float32, keys: Keys, stream: int) -> Float32:
        """Return the result of the function. Raises UserError if the result is not usable."""
        try:
            found = _import_function(self.function)(values.copy(), derived(keys, stream), **self.parameters)
        except Exception as error:
            raise UserError(
                f"the transform {self.function} failed: {describe_exception(error, __name__)}"
            ) from error
        if not isinstance(found, np.ndarray) or found.shape != values.shape:
            got = f"an array {found.shape}" if isinstance(found, np.ndarray) else f"a {type(found).__name__}"
            raise UserError(
                f"the transform {self.function} returned {got}; it must return an array {values.shape}"
            )
        if not np.issubdtype(found.dtype, np.floating):
            raise UserError(f"the transform {self.function} returned {found.dtype}; it must return float32")
        if not np.isfinite(found).all():
            raise UserError(f"the transform {self.function} returned infinite or NaN values")
        return found.astype(np.float32)


def _import_function(name: str) -> Callable[..., object]:
    module, _, function = name.partition(":")
    if not module or not function:
        raise UserError(f"the transform {name!r} has no valid name; write module:function")
    if (here := str(Path.cwd())) not in sys.path:  # commands do not include it by default
        sys.path.append(here)
    try:
        found = getattr(import_module(module), function)
    except ImportError as error:
        raise UserError(
            f"the transform {name} cannot be imported ({error}); put {module} into the folder of the "
            "command, install it, or set PYTHONPATH to its folder"
        ) from error
    except AttributeError as error:
        raise UserError(f"the transform {name} does not exist: {module} has no {function}") from error
    if not callable(found):
        raise UserError(f"the transform {name} is a {type(found).__name__}; it must be a function")
    return found  # type: ignore[no-any-return]  # callable

"""Buffers that a module changes while it computes, such as hand-written running means.

Knows: state dicts. Does not know: which process computes, what happens to the buffers.
"""

from __future__ import annotations

from torch import Tensor, nn


class Buffers:
    """A snapshot of a module's persistent buffers."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = {name: value.clone() for name, value in self._current().items()}

    def changed(self) -> list[str]:
        """Return the names of buffers that differ from the snapshot."""
        return [name for name, value in self._current().items() if not _same(value, self._before.get(name))]

    def _current(self) -> dict[str, Tensor]:
        learnt = {name for name, _ in self._module.named_parameters(remove_duplicate=False)}
        kept = self._module.state_dict()
        return {name: value for name, value in kept.items() if name not in learnt}


def _same(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN equals NaN


def refusal(module: nn.Module, names: list[str], strategy: str) -> str:
    """Return why a module that changes these buffers cannot be trained by a multi-process strategy."""
    return (
        f"{', '.join(names[:3])} of {type(module).__name__} {'are' if len(names) > 1 else 'is'} changed "
        f"while the module computes; with strategy {strategy} each process would change only its copy, and "
        "the run's buffers would never change: remove them, put their layers into eval(), or train with "
        "strategy supervised"
    )

"""Buffers that a module changes while it computes, such as running means written by hand.

Knows: state dicts. Does not know: who computes, what becomes of the buffers.
"""

from __future__ import annotations

from torch import Tensor, nn


class Buffers:
    """The buffers of a module that its checkpoints keep, as they were when this was made."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._before = {name: value.clone() for name, value in self._now().items()}

    def changed(self) -> list[str]:
        """The names of buffers that are different now."""
        return [name for name, value in self._now().items() if not _same(value, self._before.get(name))]

    def _now(self) -> dict[str, Tensor]:
        learnt = {name for name, _ in self._module.named_parameters(remove_duplicate=False)}
        kept = self._module.state_dict()
        return {name: value for name, value in kept.items() if name not in learnt}


def _same(one: Tensor, other: Tensor | None) -> bool:
    if other is None or one.shape != other.shape:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())  # NaN is as NaN


def refusal(module: nn.Module, names: list[str], strategy: str) -> str:
    """Why a module that changes these buffers cannot be trained by a strategy of many processes."""
    return (
        f"{', '.join(names[:3])} of {type(module).__name__} {'are' if len(names) > 1 else 'is'} changed "
        f"while the module computes; by strategy {strategy} each process would change its own, and the run's "
        "would stay as they are: take these buffers out, put their layers into eval(), or train by strategy "
        "supervised"
    )

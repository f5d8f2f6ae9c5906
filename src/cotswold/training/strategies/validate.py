"""Checks of strategies, which other packages may write, against the interface in `training.strategies.base`.

Knows: names of methods, types of results. Does not know: what a strategy does, when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import getattr_static
from numbers import Real

from torch import Tensor

from cotswold.checkpoint import OptionalTensor, TensorPart
from cotswold.errors import UserError, frame_of
from cotswold.run import Metrics
from cotswold.training.strategies.base import OPTIONAL, Strategy

_PLAIN = (type(None), bool, int, float, str)


def check_interface(strategy: Strategy) -> None:
    """Raise UserError if a strategy lacks a method or attribute of the interface."""
    for name, verb in vars(Strategy).items():
        if name.startswith("_"):
            continue
        found = getattr_static(strategy, name, None)
        if found is verb and name not in OPTIONAL:  # as in the base class
            found = None
        what = "method" if callable(verb) else "attribute or property"
        if found is None or (callable(verb) and not callable(getattr(strategy, name))):
            others = [each for each in dir(strategy) if each[0] != "_" and each not in vars(Strategy)]
            close = get_close_matches(name, others, n=1)
            hint = f"; it has {close[0]}" if close else ""
            raise UserError(
                f"the strategy {_named(strategy)} has no {what} {name}{hint}; "
                "cotswold.training.Strategy documents it"
            )


def check_state(strategy: Strategy, state: object) -> None:
    """Raise UserError unless the state of a strategy is a flat dictionary that a checkpoint can store."""
    if not isinstance(state, Mapping):
        raise UserError(f"{_named(strategy)}.state_dict returned {_kind(state)}; it must return a dictionary")
    for name, value in state.items():
        kept = isinstance(value, (Tensor, TensorPart, OptionalTensor, *_PLAIN)) or hasattr(value, "chunks")
        if not kept or not isinstance(name, str):
            remedy = (
                f'; return its values one by one, as "{name}.…"'
                if isinstance(value, Mapping | list | tuple)
                else ""
            )
            raise UserError(
                f"{_named(strategy)}.state_dict returned {_kind(value)} for {name!r:.80}; it must be flat: "
                f"names with tensors and plain values (None, bool, int, float, str){remedy}"
            )


def check_metrics(strategy: Strategy, verb: str, found: object) -> Metrics:
    """Return the metrics that a method returned; raises UserError for another type."""
    if not isinstance(found, Metrics):
        raise UserError(
            f"{_named(strategy)}.{verb} returned {_kind(found)}; it must return Metrics(loss, samples, "
            "details)"
        )
    values: Mapping[str, object] = {"the loss": found.loss, **found.details}
    for name, value in values.items():
        if not isinstance(value, Real):
            raise UserError(
                f"{_named(strategy)}.{verb} returned {_kind(value)} for {name}; it must return a number; "
                "for a tensor use float(value.detach())"
            )
    return found


@contextmanager
def add_location(strategy: Strategy) -> Iterator[None]:
    """Add the location in the other package to exceptions that its strategy raises."""
    try:
        yield
    except Exception as error:
        module = type(strategy).__module__
        place = frame_of(error, module)
        if place and module.partition(".")[0] != __name__.partition(".")[0]:
            error.add_note(place)
        raise


def _named(strategy: Strategy) -> str:
    return type(strategy).__qualname__


def _kind(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"

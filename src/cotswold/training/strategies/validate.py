"""What a strategy brings, checked against the verbs of `training.strategies.base`: other packages write
strategies.

Knows: names of verbs, kinds of answers. Does not know: what a strategy does, when it is asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from inspect import getattr_static
from numbers import Real

from torch import Tensor

from cotswold.checkpoint import OptionalTensor, TensorPart
from cotswold.errors import UserError, place_of
from cotswold.run import Metrics
from cotswold.training.strategies.base import Strategy

_PLAIN = (type(None), bool, int, float, str)


def check_verbs(strategy: Strategy) -> None:
    """Raise UserError where a strategy lacks one of the verbs."""
    for name, verb in vars(Strategy).items():
        if name.startswith("_"):
            continue
        found = getattr_static(strategy, name, None)
        what = "method" if callable(verb) else "attribute or property"
        if found is None or (callable(verb) and not callable(getattr(strategy, name))):
            close = get_close_matches(name, [each for each in dir(strategy) if each[0] != "_"], n=1)
            hint = f"; it has {close[0]}" if close and close[0] != name else ""
            raise UserError(
                f"the strategy {_named(strategy)} has no {what} {name}{hint}; "
                "cotswold.training.strategies.base says what it must do"
            )


def check_state(strategy: Strategy, state: object) -> None:
    """Raise UserError where the state of a strategy is not a flat dictionary that a checkpoint can keep."""
    if not isinstance(state, Mapping):
        raise UserError(f"{_named(strategy)}.state_dict gives {_kind(state)}, and must give a dictionary")
    for name, value in state.items():
        kept = isinstance(value, (Tensor, TensorPart, OptionalTensor, *_PLAIN)) or hasattr(value, "pieces")
        if not kept or not isinstance(name, str):
            remedy = (
                f'; give its values one by one, as "{name}.…"'
                if isinstance(value, Mapping | list | tuple)
                else ""
            )
            raise UserError(
                f"{_named(strategy)}.state_dict gives {_kind(value)} for {name!r:.80}, and must be flat: "
                f"names with tensors and plain values (None, bool, int, float, str){remedy}"
            )


def measured(strategy: Strategy, verb: str, found: object) -> Metrics:
    """The metrics that a verb gave; raises UserError for anything else."""
    if not isinstance(found, Metrics):
        raise UserError(
            f"{_named(strategy)}.{verb} gives {_kind(found)}, and must give Metrics(loss, samples, details)"
        )
    values: Mapping[str, object] = {"the loss": found.loss, **found.details}
    for name, value in values.items():
        if not isinstance(value, Real):
            raise UserError(
                f"{_named(strategy)}.{verb} gives {_kind(value)} for {name}, and must give a number; of a "
                "tensor: float(value.detach())"
            )
    return found


@contextmanager
def placed(strategy: Strategy) -> Iterator[None]:
    """Note at every exception that a strategy of another package raises inside where in that package it was
    raised."""
    try:
        yield
    except Exception as error:
        module = type(strategy).__module__
        place = place_of(error, module)
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

"""Named transforms, one after the other, as one function of pictures and keys.

Knows: the names, what follows what, that moves which follow each other are one. Does not know: recipes,
stores, who asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import numpy as np

from cotswold.data.augment import warp
from cotswold.data.augment.custom import Own
from cotswold.data.augment.geometric import (
    Affine,
    Crop,
    Elastic,
    Reflection,
    Rotation,
    Translation,
    then,
    times,
    unmoved,
)
from cotswold.data.augment.photometric import Colour, Erase, Noise
from cotswold.data.augment.random import Float32, Keys
from cotswold.errors import UserError

_MOVES = (Translation, Reflection, Rotation, Affine, Crop, Elastic)
Moving = Translation | Reflection | Rotation | Affine | Crop | Elastic
Changing = Colour | Erase | Noise | Own
Step = Moving | Changing
STEPS: Mapping[str, type[Step]] = {
    each.__name__.lower(): each for each in (*_MOVES, Colour, Erase, Noise, Own)
}
"""By the name that recipes call them."""
OWN = Own.__name__.lower()
"""The name of a function of somebody's own, which is imported where an augmentation is made of it."""
_STREAMS = 8
"""Streams of random numbers that a step may use."""


@dataclass(frozen=True)
class Augmentation:
    """Transforms of pictures, in their order.

    ``augmentation(values, keys)``: a variant of each picture of float32 (image, channel, y, x), by its values
    and its key alone; the same bits in whatever batch, thread, process and machine. Moves that follow each
    other with the same fill are taken in one, so that pixels are interpolated once. Cheap to pickle.
    """

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, object]]) -> Augmentation:
        """Of tables as recipes have them, each with its ``name`` and parameters. Raises UserError."""
        return cls(tuple(map(_step, steps)))

    def state(self) -> list[dict[str, object]]:
        """Plain values, of which `of` makes the same."""
        return [_plain(each) for each in self.steps]

    def __call__(self, values: Float32, keys: Keys) -> Float32:
        """Variants."""
        found = np.ascontiguousarray(values, np.float32)
        if len(values) == 0:
            return found
        for group in self._groups():
            found = group.of(found, keys)
        return found

    def _groups(self) -> Iterator[_Moved | _Changed]:
        """What is done in one pass over the pixels each."""
        moves: list[tuple[int, Moving]] = []
        for number, step in enumerate(self.steps):
            if not isinstance(step, _MOVES):
                if moves:
                    yield _Moved(moves)
                yield _Changed(number, step)
                moves = []
                continue
            if moves and not _fits(moves, step):
                yield _Moved(moves)
                moves = []
            moves.append((number, step))
        if moves:
            yield _Moved(moves)


def _fits(moves: Sequence[tuple[int, Moving]], step: Moving) -> bool:
    """Whether a move can be taken in one with those before it."""
    fields_ = sum(isinstance(each, Elastic) for _, each in (*moves, (0, step)))
    return step.fill == moves[0][1].fill and fields_ <= 1


class _Changed:
    def __init__(self, number: int, step: Changing) -> None:
        self._number, self._step = number, step

    def of(self, values: Float32, keys: Keys) -> Float32:
        return self._step.changed(values, keys, _STREAMS * self._number)


class _Moved:
    """Moves in one. The place in the picture is found from that in the variant, so the last move comes first;
    the field of displacements is drawn for the variant's pixels, wherever it stands among the moves: it is as
    smooth and as likely there as anywhere."""

    def __init__(self, moves: Sequence[tuple[int, Moving]]) -> None:
        self._moves = tuple(moves)

    def of(self, values: Float32, keys: Keys) -> Float32:
        height, width = values.shape[2:]
        maps, slopes, elastic = unmoved(len(keys)), None, None
        for number, step in reversed(self._moves):
            stream = _STREAMS * number
            if isinstance(step, Elastic):
                elastic, slopes = (stream + 1, step.sigma), step.slopes(keys, stream)
                continue
            before = step.before(keys, stream, height, width)
            maps = then(maps, before)
            if slopes is not None:
                slopes = times(before[:, :, :2], slopes)
        field = None if elastic is None or slopes is None else warp.field(keys, *elastic, slopes)
        return warp.warped(values, maps, field, self._moves[0][1].fill)


def _step(table: Mapping[str, object]) -> Step:
    given: dict[str, Any] = dict(table)
    name = given.pop("name", None)
    if name not in STEPS:
        raise UserError(f"there is no transform {name!r}; there are {', '.join(STEPS)}")
    kind = STEPS[str(name)]
    if kind is Own:
        function = given.pop("function", None)
        if not isinstance(function, str):
            raise UserError('own: give function = "module:function"')
        return Own(function, given)
    known = {each.name for each in fields(kind)}
    if unknown := sorted(set(given) - known):
        raise UserError(f"{name} has no parameter {unknown[0]}; it has {', '.join(sorted(known))}")
    try:
        made: Step = cast(Any, kind)(
            **{key: tuple(one) if isinstance(one, list) else one for key, one in given.items()}
        )
        return made
    except TypeError as error:
        raise UserError(f"{name}: {error}") from error


def _plain(step: Step) -> dict[str, object]:
    name = type(step).__name__.lower()
    if isinstance(step, Own):
        return {"name": name, "function": step.function, **step.parameters}
    values = {
        key: list(one) if isinstance(one, tuple) else one
        for key, one in asdict(step).items()
        if one is not None
    }
    return {"name": name, **values}

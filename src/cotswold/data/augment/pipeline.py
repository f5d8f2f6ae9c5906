"""A sequence of named transforms as one function of images and keys.

Knows: the names, the order, the merging of consecutive geometric transforms. Does not know: recipes,
stores, callers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, cast

import numpy as np

from cotswold.data.augment import warp
from cotswold.data.augment.custom import Custom
from cotswold.data.augment.geometric import (
    Affine,
    Elastic,
    Flip,
    RandomCrop,
    Rotation,
    Translation,
    compose,
    identity_maps,
    times,
)
from cotswold.data.augment.keyed_random import Float32, Keys
from cotswold.data.augment.photometric import ColourJitter, Cutout, Noise
from cotswold.errors import UserError

_GEOMETRIC_STEPS = (Translation, Flip, Rotation, Affine, RandomCrop, Elastic)
GeometricStep = Translation | Flip | Rotation | Affine | RandomCrop | Elastic
PhotometricStep = ColourJitter | Cutout | Noise | Custom
Step = GeometricStep | PhotometricStep
STEPS: Mapping[str, type[Step]] = {
    each.name: each for each in (*_GEOMETRIC_STEPS, ColourJitter, Cutout, Noise, Custom)
}
"""Transforms by their names in recipes."""
CUSTOM = Custom.name
"""Name of a user-defined function, which is imported when the augmentation is constructed."""
_STREAMS = 8
"""Number of random streams reserved for each step."""


@dataclass(frozen=True)
class Augmentation:
    """Transforms of images, applied in order.

    ``augmentation(values, keys)`` returns one variant of each image of float32 (image, channel, y, x). A
    variant depends only on the image and its key: its bits are the same in any batch, thread, process and
    machine. Consecutive geometric transforms with the same fill are merged, so that pixels are interpolated
    once. Instances are cheap to pickle.

    Args:
        steps: The transforms.
    """

    steps: tuple[Step, ...]

    @classmethod
    def of(cls, steps: Sequence[Mapping[str, object]]) -> Augmentation:
        """Construct an augmentation from the tables of a recipe.

        Args:
            steps: Tables with a ``name`` and the parameters of that transform.

        Raises:
            UserError: for an unknown name or an invalid parameter.
        """
        return cls(tuple(map(_step, steps)))

    def state(self) -> list[dict[str, object]]:
        """Return plain values that `of` accepts."""
        return [_as_table(each) for each in self.steps]

    def __call__(self, values: Float32, keys: Keys) -> Float32:
        """Return one variant of each image.

        Args:
            values: float32 (image, channel, y, x).
            keys: uint64 (image,), from `cotswold.data.keys`.

        Returns:
            float32 (image, channel, y, x).
        """
        found = np.ascontiguousarray(values, np.float32)
        if len(values) == 0:
            return found
        for group in self._groups():
            found = group.apply(found, keys)
        return found

    def _groups(self) -> Iterator[_GeometricStage | _PhotometricStage]:
        """Yield groups of steps that are applied in one pass over the pixels."""
        moves: list[tuple[int, GeometricStep]] = []
        for number, step in enumerate(self.steps):
            if not isinstance(step, _GEOMETRIC_STEPS):
                if moves:
                    yield _GeometricStage(moves)
                yield _PhotometricStage(number, step)
                moves = []
                continue
            if moves and not _fits(moves, step):
                yield _GeometricStage(moves)
                moves = []
            moves.append((number, step))
        if moves:
            yield _GeometricStage(moves)


def _fits(moves: Sequence[tuple[int, GeometricStep]], step: GeometricStep) -> bool:
    """True if a geometric transform can be merged with those before it."""
    fields_ = sum(isinstance(each, Elastic) for _, each in (*moves, (0, step)))
    return step.fill == moves[0][1].fill and fields_ <= 1


class _PhotometricStage:
    def __init__(self, number: int, step: PhotometricStep) -> None:
        self._number, self._step = number, step

    def apply(self, values: Float32, keys: Keys) -> Float32:
        return self._step.changed(values, keys, _STREAMS * self._number)


class _GeometricStage:
    """Merged geometric transforms.

    Positions in the image are computed from those in the variant, so the last transform is applied first. The
    displacement field is drawn for the pixels of the variant regardless of its place in the sequence; its
    distribution is the same everywhere.
    """

    def __init__(self, moves: Sequence[tuple[int, GeometricStep]]) -> None:
        self._moves = tuple(moves)

    def apply(self, values: Float32, keys: Keys) -> Float32:
        height, width = values.shape[2:]
        maps, slopes, elastic = identity_maps(len(keys)), None, None
        for number, step in reversed(self._moves):
            stream = _STREAMS * number
            if isinstance(step, Elastic):
                elastic, slopes = (stream + 1, step.sigma), step.slopes(keys, stream)
                continue
            before = step.before(keys, stream, height, width)
            maps = compose(maps, before)
            if slopes is not None:
                slopes = times(before[:, :, :2], slopes)
        field = None if elastic is None or slopes is None else warp.field(keys, *elastic, slopes)
        return warp.warped(values, maps, field, self._moves[0][1].fill)


def _step(table: Mapping[str, object]) -> Step:
    given: dict[str, Any] = dict(table)
    name = given.pop("name", None)
    if name not in STEPS:
        raise UserError(f"unknown transform {name!r}; choose from {', '.join(STEPS)}")
    kind = STEPS[str(name)]
    if kind is Custom:
        function = given.pop("function", None)
        if not isinstance(function, str):
            raise UserError('custom: function is missing; set function = "module:function"')
        return Custom(function, given)
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


def _as_table(step: Step) -> dict[str, object]:
    if isinstance(step, Custom):
        return {"name": step.name, "function": step.function, **step.parameters}
    values = {
        key: list(one) if isinstance(one, tuple) else one
        for key, one in asdict(step).items()
        if one is not None
    }
    return {"name": step.name, **values}

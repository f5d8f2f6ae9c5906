"""What `cotswold evaluate` finds, and the file that keeps it.

Knows: rows of the selectivity table and portraits of the best neurons, as JSON. Does not know: how they are
found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from cotswold.analysis.neurons import Position
from cotswold.analysis.selectivity import LayerSelectivity, PassTime
from cotswold.errors import RunError


@dataclass(frozen=True)
class Exemplar:
    """A picture and what a neuron answers to it; ``image`` is a data URI."""

    name: str
    response: float
    positive: bool
    image: str


@dataclass(frozen=True)
class Portrait:
    """One of the most selective neurons: its optimal stimulus, and pictures that excite it most and least.

    ``correlation`` is that of the stimulus with the mean positive picture; ``percentile`` its place among the
    stimuli of ``compared`` neurons of the layer drawn at random, ``percentile_random`` among those of
    the same neurons with random filters, where they were made. ``image`` is a data URI.
    """

    layer: str
    neuron: Position
    accuracy: float
    image: str
    correlation: float
    percentile: float | None
    percentile_random: float | None
    compared: int
    most: tuple[Exemplar, ...]
    least: tuple[Exemplar, ...]


@dataclass(frozen=True)
class ObjectSelectivity:
    """One object, one row of the table: how well neurons tell its pictures from others.

    ``network`` holds a result a layer; ``random``, ``dictionary``, ``control`` and ``oracle`` are the rivals
    measured beside it, where they were: the same network with random filters, the same with a k-means
    dictionary in its last stack, another run, and the mean positive picture as a linear filter.
    ``mean_positive`` is a data URI.
    """

    name: str
    positives: int
    negatives: int
    guess: float
    network: tuple[LayerSelectivity, ...]
    random: tuple[LayerSelectivity, ...] = ()
    dictionary: tuple[LayerSelectivity, ...] = ()
    control: tuple[LayerSelectivity, ...] = ()
    oracle: LayerSelectivity | None = None
    portraits: tuple[Portrait, ...] = ()
    mean_positive: str | None = None
    passes: tuple[PassTime, ...] = ()

    @property
    def best(self) -> LayerSelectivity:
        """The layer of the network whose chosen neuron does best on pictures it was not chosen on."""
        return max(self.network, key=lambda layer: layer.held_out)


@dataclass(frozen=True)
class Evaluation:
    """All objects tested on one checkpoint."""

    step: int
    objects: tuple[ObjectSelectivity, ...] = ()

    def with_object(self, found: ObjectSelectivity) -> Evaluation:
        """With one more object, in the place of an older result of the same name."""
        if any(old.name == found.name for old in self.objects):
            return Evaluation(self.step, tuple(found if o.name == found.name else o for o in self.objects))
        return Evaluation(self.step, (*self.objects, found))

    def to_json(self) -> str:
        """Text that `from_json` reads."""
        return _EVALUATION.dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Evaluation:
        """The inverse of `to_json`; raises RunError for text that is no evaluation."""
        try:
            return _EVALUATION.validate_json(text)
        except ValidationError as error:
            where = error.errors()[0]
            place = ".".join(str(part) for part in where["loc"]) or "the file"
            raise RunError(
                f"this is no evaluation ({place}: {where['msg']}); run cotswold evaluate again"
            ) from None

    @classmethod
    def read(cls, path: Path) -> Evaluation | None:
        """The evaluation in a file; None where there is no file."""
        try:
            return cls.from_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except RunError as error:
            raise RunError(f"{path}: {error}") from None


_EVALUATION = TypeAdapter(Evaluation)

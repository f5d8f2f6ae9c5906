"""What `cotswold evaluate` finds.

Knows: rows of the selectivity table, baselines, portraits of the best neurons. Does not know: how they are
found.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cotswold.analysis.results_file import Sealed
from cotswold.analysis.selectivity.neurons import Position
from cotswold.analysis.selectivity.scores import PAPER, ClassWeights, LayerSelectivity, PassTime
from cotswold.analysis.tables import html_table

THIS_NETWORK = "this network"


@dataclass(frozen=True)
class Exemplar:
    """A picture and what a neuron answers to it; ``image`` is a data URI."""

    name: str
    response: float
    positive: bool
    image: str = field(repr=False)


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
    image: str = field(repr=False)
    correlation: float
    percentile: float | None
    percentile_random: float | None
    compared: int
    most: tuple[Exemplar, ...]
    least: tuple[Exemplar, ...]


@dataclass(frozen=True)
class Clustering:
    """How a k-means dictionary was made: passes over so many pictures, and whether it had settled."""

    passes: int
    pictures: int
    converged: bool


@dataclass(frozen=True)
class ObjectSelectivity:
    """One object, one row of the table: how well neurons tell its pictures from others.

    ``network`` holds a result a layer; ``random``, ``dictionary``, ``control`` and ``oracle`` are its
    baselines, where they were measured: the same network with random filters, the same with a k-means
    dictionary in its last stack, another run, and the mean positive picture as a linear filter.
    ``mean_positive`` is a data URI. ``asked`` tells the question: the same one has the same answer.
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
    weights: ClassWeights = PAPER
    clustering: Clustering | None = None
    asked: str = ""

    @property
    def best(self) -> LayerSelectivity:
        """The layer of the network whose chosen neuron does best on pictures it was not chosen on."""
        return max(self.network, key=lambda layer: layer.held_out)

    @property
    def compared(self) -> dict[str, LayerSelectivity]:
        """The best layer of the network and of each baseline, by name.

        The mean picture, which knows the labels, does not compete.
        """
        found = {
            THIS_NETWORK: self.network,
            "random filters": self.random,
            "k-means": self.dictionary,
            "control": self.control,
        }
        return {who: max(of, key=lambda layer: layer.held_out) for who, of in found.items() if of}

    @property
    def winner(self) -> str:
        """Who does best on pictures that neurons were not chosen on: the network, or which baseline."""
        compared = self.compared
        return max(compared, key=lambda who: compared[who].held_out)

    def __repr__(self) -> str:
        best = "; ".join(
            f"{who} {layer.held_out:.3f} ({layer.layer})" for who, layer in self.compared.items()
        )
        return f"<{self.name}: best held out: {best}; guessing {self.guess:.3f}>"


@dataclass(frozen=True)
class Evaluation:
    """All objects tested on one checkpoint."""

    step: int
    objects: tuple[ObjectSelectivity, ...] = ()

    def __repr__(self) -> str:
        count = len(self.objects)
        said = f"Evaluation of step {self.step}: {count} object{'' if count == 1 else 's'}"
        return "\n".join([said, *(f"  {each!r}" for each in self.objects)])

    def _repr_html_(self) -> str:
        who = list(dict.fromkeys(name for each in self.objects for name in each.compared))
        rows = []
        for each in self.objects:
            found = {name: f"{layer.held_out:.3f} ({layer.layer})" for name, layer in each.compared.items()}
            rows.append([each.name, f"{each.guess:.3f}", *(found.get(name, "") for name in who)])
        caption = f"Best neuron on held-out halves (and its layer), step {self.step}"
        return html_table(caption, ["object", "guessing", *who], rows)

    def with_object(self, found: ObjectSelectivity) -> Evaluation:
        """With one more object, in the place of an older result of the same name."""
        if any(old.name == found.name for old in self.objects):
            return Evaluation(self.step, tuple(found if o.name == found.name else o for o in self.objects))
        return Evaluation(self.step, (*self.objects, found))

    def answers(self, name: str, asked: str) -> bool:
        """Whether it has the answer to a question about an object."""
        return any(each.name == name and each.asked == asked for each in self.objects)

    def to_json(self) -> str:
        """Text that `from_json` reads; RunError for a figure that is no number."""
        return EVALUATION.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Evaluation:
        """The inverse of `to_json`; raises RunError for text that is no evaluation, or a damaged one."""
        return EVALUATION.from_json(text)

    @classmethod
    def read(cls, path: Path) -> Evaluation | None:
        """The evaluation in a file; None where there is no file, RunError where it is damaged."""
        return EVALUATION.read(path)

    def write(self, path: Path) -> None:
        """Have a file hold it, whole or not at all."""
        EVALUATION.write(path, self)


EVALUATION = Sealed(Evaluation, "evaluation")

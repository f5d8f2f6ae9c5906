"""Results of `cotswold evaluate`.

Knows: rows of the selectivity table, baselines, profiles of the best neurons. Does not know: how they are
computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from cotswold.analysis.results_file import ResultsFile, html_table
from cotswold.analysis.selectivity.few_label_results import FewLabels
from cotswold.analysis.selectivity.neurons import Position
from cotswold.analysis.selectivity.scores import PAPER, ClassWeights, LayerSelectivity, PassTime

THIS_NETWORK = "this network"


@dataclass(frozen=True)
class TopImage:
    """An image (a data URI), and a neuron's response to it."""

    name: str
    response: float
    positive: bool
    image: str = field(repr=False)


@dataclass(frozen=True)
class NeuronProfile:
    """Profile of a selective neuron: its optimal stimulus and the images with extreme responses.

    Attributes:
        layer: name of the layer.
        neuron: position in the layer, (channel, y, x).
        accuracy: best accuracy on all images.
        image: optimal stimulus, a data URI.
        correlation: correlation of the stimulus with the mean positive image.
        percentile: percentage of `compared_neurons` random neurons of the layer whose stimuli correlate less.
        percentile_random: the same for random filters, if computed.
        compared_neurons: number of random neurons.
        highest: images with the largest responses.
        lowest: images with the smallest responses.
    """

    layer: str
    neuron: Position
    accuracy: float
    image: str = field(repr=False)
    correlation: float
    percentile: float | None
    percentile_random: float | None
    compared_neurons: int
    highest: tuple[TopImage, ...]
    lowest: tuple[TopImage, ...]


@dataclass(frozen=True)
class Clustering:
    """Result of k-means: number of passes, images per pass, and whether it converged."""

    passes: int
    images: int
    converged: bool


@dataclass(frozen=True)
class ObjectSelectivity:
    """Selectivity for one object: how well neurons separate its images from others. One row of the table.

    Attributes:
        name: name of the object.
        positives: number of images with the object.
        negatives: number of images without it.
        guess: accuracy of guessing.
        network: one result per layer.
        random: baseline: the same network with random filters.
        dictionary: baseline: k-means filters in the last stack.
        control: baseline: another run.
        oracle: the mean positive image as a linear filter.
        profiles: profiles of the best neurons.
        mean_positive: mean positive image, a data URI.
        passes: time of each pass over the images.
        weights: weights of the classes in an accuracy.
        clustering: result of k-means.
        test_key: key of the test's settings: equal keys have equal results.
        few_labels: accuracy with few labelled images, if measured.
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
    profiles: tuple[NeuronProfile, ...] = ()
    mean_positive: str | None = None
    passes: tuple[PassTime, ...] = ()
    weights: ClassWeights = PAPER
    clustering: Clustering | None = None
    test_key: str = ""
    few_labels: FewLabels | None = None

    @property
    def best(self) -> LayerSelectivity:
        """Layer of the network with the best held-out accuracy."""
        return max(self.network, key=lambda layer: layer.held_out)

    @property
    def best_layers(self) -> dict[str, LayerSelectivity]:
        """Best layer of the network and of each baseline, by name.

        The mean image is excluded, because it uses the labels.
        """
        found = {
            THIS_NETWORK: self.network,
            "random filters": self.random,
            "k-means": self.dictionary,
            "control": self.control,
        }
        return {who: max(of, key=lambda layer: layer.held_out) for who, of in found.items() if of}

    @property
    def best_model(self) -> str:
        """Name of the best by held-out accuracy: the network, or a baseline."""
        compared = self.best_layers
        return max(compared, key=lambda who: compared[who].held_out)

    def __repr__(self) -> str:
        best = "; ".join(
            f"{who} {layer.held_out:.3f} ({layer.layer})" for who, layer in self.best_layers.items()
        )
        return f"<{self.name}: best held out: {best}; guessing {self.guess:.3f}>"


@dataclass(frozen=True)
class Evaluation:
    """Selectivity of one checkpoint for all tested objects.

    Attributes:
        step: step of the checkpoint.
        objects: one result per object.
    """

    step: int
    objects: tuple[ObjectSelectivity, ...] = ()

    def __repr__(self) -> str:
        count = len(self.objects)
        said = f"Evaluation of step {self.step}: {count} object{'' if count == 1 else 's'}"
        return "\n".join([said, *(f"  {each!r}" for each in self.objects)])

    def _repr_html_(self) -> str:
        who = list(dict.fromkeys(name for each in self.objects for name in each.best_layers))
        rows = []
        for each in self.objects:
            found = {
                name: f"{layer.held_out:.3f} ({layer.layer})" for name, layer in each.best_layers.items()
            }
            rows.append([each.name, f"{each.guess:.3f}", *(found.get(name, "") for name in who)])
        caption = f"Best neuron on held-out halves (and its layer), step {self.step}"
        return html_table(caption, ["object", "guessing", *who], rows)

    def with_object(self, found: ObjectSelectivity) -> Evaluation:
        """Return a copy with the result of an object, which replaces an older one of the same name.

        Args:
            found: the result.
        """
        if any(old.name == found.name for old in self.objects):
            return Evaluation(self.step, tuple(found if o.name == found.name else o for o in self.objects))
        return Evaluation(self.step, (*self.objects, found))

    def has_result(self, name: str, test_key: str) -> bool:
        """Return True if it contains the result of a test.

        Args:
            name: name of the object.
            test_key: key of the test's settings.
        """
        return self.result(name, test_key) is not None

    def result(self, name: str, test_key: str) -> ObjectSelectivity | None:
        """Return the result of a test; None if there is none.

        Args:
            name: name of the object.
            test_key: key of the test's settings.
        """
        found = (each for each in self.objects if each.name == name and each.test_key == test_key)
        return next(found, None)

    def to_json(self) -> str:
        """Return JSON text for `from_json`.

        Raises:
            RunError: if a figure is not a finite number.
        """
        return EVALUATION.to_json(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> Evaluation:
        """Return the evaluation in JSON text.

        Args:
            text: the result of `to_json`.

        Raises:
            RunError: for any other or damaged text.
        """
        return EVALUATION.from_json(text)

    @classmethod
    def read(cls, path: Path) -> Evaluation | None:
        """Return the evaluation in a file; None if the file does not exist.

        Args:
            path: a file written by `write`.

        Raises:
            RunError: if the file is damaged.
        """
        return EVALUATION.read(path)

    def write(self, path: Path) -> None:
        """Write a file atomically.

        Args:
            path: the file; an existing one is replaced.
        """
        EVALUATION.write(path, self)


EVALUATION = ResultsFile(Evaluation, "evaluation")

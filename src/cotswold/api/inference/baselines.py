"""The baselines of an evaluation, and the reuse of earlier results.

Knows: the construction of a run's baselines from its files, when a test need not be repeated. Does not know:
the measurement of selectivity, display.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import cotswold
from cotswold import analysis, training
from cotswold.analysis.results_file import set_aside
from cotswold.data import Source, of_images, open_source
from cotswold.errors import RecipeError, RunError, SourceError, StoreError
from cotswold.recipe import Recipe, expand, load
from cotswold.recipe.schema import StackTraining
from cotswold.run import RunDirectory
from cotswold.ui.display import Display

if TYPE_CHECKING:
    from torch import Tensor

    from cotswold.analysis.selectivity.results import Clustering
    from cotswold.analysis.selectivity.scores import ClassWeights
    from cotswold.data import Store
    from cotswold.nn import StackNetwork
    from cotswold.recipe.schema import Evaluation as Test
    from cotswold.training import Trained
    from cotswold.ui.terminal import Stages

Sources = tuple[Source, Source]
"""Images with an object, and images without."""
MakeBaselines = Callable[[Sources, analysis.ObjectTestSet], analysis.Baselines]
_UNLABELLED = 5000
"""Training images among which those that excite a neuron most are searched."""


@dataclass(frozen=True)
class Wishes:
    """Options of an evaluation other than the tests, and the display of progress."""

    layers: Sequence[str]
    control: Path | None
    splits: int
    weights: ClassWeights | None
    stores: Path | None
    anew: bool
    display: Display


@dataclass(frozen=True)
class _Field:
    """A run, its control, and its training images if available."""

    recipe: Recipe
    own: Trained[StackNetwork]
    control: Trained[StackNetwork] | None
    store: Store | None
    examination: analysis.Examination
    display: Display

    def unlabelled(self, most: int | None = None) -> Iterable[Tensor]:
        """Yield one pass over the training images."""
        assert self.store is not None, "only called with a store"
        return training.training_maps(self.store, self.recipe, most)

    def question(self, positives: Source, negatives: Source) -> str:
        """Return a digest of a test: equal digests mean equal results for the same network."""
        control = self.control
        asked = [
            cotswold.__version__,
            positives.identity,
            negatives.identity,
            [str(layer) for layer in self.examination.layers],
            self.examination.splits,
            None if self.examination.weights is None else asdict(self.examination.weights),
            None if control is None else [control.identity, control.step, control.prepared.store],
            self.own.prepared.store if self.store is not None else None,
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def hold(directory: RunDirectory, tests: Sequence[Test], wishes: Wishes) -> analysis.Evaluation:
    """Test the run on each object, writing each result at once; return all results of this step."""
    field = _opened(directory, wishes)
    if untrained := training.untrained_phases(field.recipe, field.own.state):
        wishes.display.say(
            f"the last {untrained} of the {len(field.recipe.network.stacks)} stacks are untrained, so their "
            "results are those of random filters; train them first: cotswold train "
            f"--run {directory.path} --resume"
        )
    evaluation = _earlier(directory, field)
    waiting = []
    for test in tests:
        sources = open_source(expand(test.positives)), open_source(expand(test.negatives))
        asked = field.question(*sources)
        if not wishes.anew and evaluation.answers(test.name, asked):
            wishes.display.say(
                f"{test.name}: reusing the result of the same earlier test (--anew, Python: "
                "anew=True, tests again)"
            )
        else:
            waiting.append((test.name, sources, asked))
    if not waiting:
        return evaluation
    with wishes.display.stages() as told:
        baselines, clustering = _baselines(field, told)
        for name, sources, asked in waiting:
            found = _tested(field, baselines, name, sources, told)
            found = replace(found, clustering=clustering, asked=asked)
            # another process may have added a test
            evaluation = _earlier(directory, field).with_object(found)
            evaluation.write(directory.evaluation)
    return evaluation


def _opened(directory: RunDirectory, wishes: Wishes) -> _Field:
    recipe = load(directory.recipe)
    own = training.trained_stacks(directory)
    control = None
    if wishes.control is not None:
        control = training.trained_stacks(RunDirectory.open(wishes.control))
    chosen = [analysis.Layer.named(layer) for layer in wishes.layers]
    chosen = chosen or list(analysis.top_layers(own.network, "output"))
    analysis.StackLayers(own.network, chosen)  # refuses a missing layer before any computation
    of_images(own.prepared.transform)  # refuses other kinds of data before sources are read
    examination = analysis.Examination(chosen, splits=wishes.splits, weights=wishes.weights)
    store = _training_store(directory, wishes)
    return _Field(recipe, own, control, store, examination, wishes.display)


def _training_store(directory: RunDirectory, wishes: Wishes) -> Store | None:
    """Return the store of the run's training images; None if missing, as in a copied run."""
    try:
        with wishes.display.counting("preparing", "images") as advance:
            return training.store_of(directory, stores=wishes.stores, progress=advance)
    except (SourceError, StoreError, RecipeError) as error:
        wishes.display.say(
            f"the run's training images are not available ({error}), so k-means is skipped, random filters "
            "are scaled by the test images, and stimuli start from noise"
        )
        return None


def _earlier(directory: RunDirectory, field: _Field) -> analysis.Evaluation:
    """Return the earlier results for this step, to which new ones are added."""
    try:
        found = analysis.Evaluation.read(directory.evaluation)
    except RunError as error:
        aside = set_aside(directory.evaluation).name
        field.display.say(f"the earlier evaluation cannot be read and was renamed to {aside}: {error}")
        found = None
    step = field.own.step
    return found if found is not None and found.step == step else analysis.Evaluation(step)


def _baselines(field: _Field, told: Stages) -> tuple[MakeBaselines, Clustering | None]:
    """Return a function that makes the baselines of a test set, and the clustering of the dictionary."""
    network, recipe = field.own.network, field.recipe
    if field.store is None:
        return partial(_made, field, None, None), None
    assert isinstance(recipe.training, StackTraining), "baselines are of neurons in stacks"
    epochs = recipe.network.stacks[-1].epochs or recipe.training.epochs
    dictionary, clustering = analysis.kmeans_network(
        network,
        field.unlabelled,
        passes_max=max(math.ceil(epochs), analysis.PASSES_MAX),
        progress=partial(told, "k-means dictionary"),
    )
    random = training.random_stacks(recipe, next(iter(field.unlabelled())))
    return partial(_made, field, dictionary, random), clustering


def _made(
    field: _Field,
    dictionary: StackNetwork | None,
    random: StackNetwork | None,
    sources: Sources,
    test_set: analysis.ObjectTestSet,
) -> analysis.Baselines:
    if random is None:  # no training images: random filters are scaled by the test images
        random = training.random_stacks(field.recipe, next(iter(test_set()))[0])
    control = None
    if field.control is not None:
        there = field.control
        control = analysis.Control(there.network, _test_set(field.recipe, there, sources))
    return analysis.Baselines(random, dictionary, control)


def _test_set(recipe: Recipe, trained: Trained[StackNetwork], sources: Sources) -> analysis.ObjectTestSet:
    """Return the images of a test, prepared as a run requires."""
    training_ = recipe.training
    return analysis.ObjectTestSet(
        *sources, of_images(trained.prepared.transform), batch=training_.batch_size, device=training_.device
    )


def _tested(
    field: _Field, make: MakeBaselines, name: str, sources: Sources, told: Stages
) -> analysis.ObjectSelectivity:
    test_set = _test_set(field.recipe, field.own, sources)
    found = analysis.examine(
        name,
        field.own.network,
        make(sources, test_set),
        test_set,
        field.examination,
        unlabelled=partial(field.unlabelled, _UNLABELLED) if field.store is not None else None,
        transform=of_images(field.own.prepared.transform),
        look=test_set.look,
        progress=lambda doing, done: told(f"{name}, {doing}", done),
    )
    for reason in test_set.broken:
        field.display.say(f"left out: {reason}")
    return found

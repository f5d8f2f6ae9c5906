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
from cotswold.analysis.results_file import rename_damaged
from cotswold.analysis.selectivity.few_labels import DRAWS
from cotswold.data import Source, as_image_transform, open_source
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
class EvaluationOptions:
    """Options of an evaluation other than the tests, and the display of progress."""

    layers: Sequence[str]
    control: Path | None
    splits: int
    weights: ClassWeights | None
    stores: Path | None
    repeat: bool
    display: Display
    few_labels: Sequence[int] = ()
    draws: int | None = None


@dataclass(frozen=True)
class _TestContext:
    """A run, its control, and its training images if available."""

    recipe: Recipe
    trained: Trained[StackNetwork]
    control: Trained[StackNetwork] | None
    store: Store | None
    settings: analysis.SelectivitySettings
    display: Display

    def unlabelled(self, most: int | None = None) -> Iterable[Tensor]:
        """Yield one pass over the training images."""
        assert self.store is not None, "only called with a store"
        return training.training_maps(self.store, self.recipe, most)

    def test_key(self, positives: Source, negatives: Source) -> str:
        """Return a digest of a test: equal digests mean equal results for the same network."""
        control = self.control
        asked = [
            cotswold.__version__,
            positives.identity,
            negatives.identity,
            [str(layer) for layer in self.settings.layers],
            self.settings.splits,
            None if self.settings.weights is None else asdict(self.settings.weights),
            None if control is None else [control.identity, control.step, control.prepared.store],
            self.trained.prepared.store if self.store is not None else None,
        ]
        return hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]


def score_objects(
    directory: RunDirectory, tests: Sequence[Test], options: EvaluationOptions
) -> analysis.Evaluation:
    """Test the run on each object, writing each result at once; return all results of this step."""
    field = _open_context(directory, options)
    if untrained := training.untrained_phases(field.recipe, field.trained.state):
        options.display.show(
            f"the last {untrained} of the {len(field.recipe.network.stacks)} stacks are untrained, so their "
            "results are those of random filters; train them first: cotswold train "
            f"--run {directory.path} --resume"
        )
    evaluation = _earlier_results(directory, field)
    waiting = []
    for test in tests:
        sources = open_source(expand(test.positives)), open_source(expand(test.negatives))
        few = _few_label_settings(test, options, field)
        if few is not None:
            few.require_images(*map(len, sources))  # before any computation
        asked = field.test_key(*sources)
        earlier = None if options.repeat else evaluation.result(test.name, asked)
        if earlier is not None and (few is None or few.is_answered_by(earlier.few_labels)):
            options.display.show(
                f"{test.name}: reusing the result of the same earlier test (--repeat, Python: "
                "repeat=True, tests again)"
            )
        else:
            waiting.append(_Waiting(test.name, sources, asked, earlier, few))
    if not waiting:
        return evaluation
    with options.display.stages() as told:
        baselines, clustering = _baselines(field, told)
        for one in waiting:
            test_set = _test_set(field.recipe, field.trained, one.sources)
            compared = baselines(one.sources, test_set)
            found = one.earlier
            if found is None:
                found = _tested(field, compared, one.name, test_set, told)
                found = replace(found, clustering=clustering, test_key=one.key)
                evaluation = _saved(directory, field, found)
            if one.few is not None:
                few_found = _few_labels(field, compared, one.name, test_set, one.few, told)
                evaluation = _saved(directory, field, replace(found, few_labels=few_found))
            for reason in test_set.broken:
                field.display.show(f"left out: {reason}")
    return evaluation


@dataclass(frozen=True)
class _Waiting:
    """A test that needs computation; ``earlier`` has its selectivity already."""

    name: str
    sources: Sources
    key: str
    earlier: analysis.ObjectSelectivity | None
    few: analysis.FewLabelSettings | None


def _few_label_settings(
    test: Test, options: EvaluationOptions, field: _TestContext
) -> analysis.FewLabelSettings | None:
    labels, network = options.few_labels or test.few_labels, field.trained.network
    layers = [*analysis.top_layers(network, "pooled"), *analysis.top_layers(network, "output")]
    chosen = field.settings.layers if options.layers else layers
    draws = DRAWS if options.draws is None else options.draws
    return analysis.FewLabelSettings(labels, chosen, draws) if labels else None


def _saved(
    directory: RunDirectory, field: _TestContext, found: analysis.ObjectSelectivity
) -> analysis.Evaluation:
    """Write a result, and return all results of this step; another process may have added a test."""
    evaluation = _earlier_results(directory, field).with_object(found)
    evaluation.write(directory.evaluation)
    return evaluation


def _open_context(directory: RunDirectory, options: EvaluationOptions) -> _TestContext:
    recipe = load(directory.recipe)
    own = training.trained_stacks(directory)
    control = None
    if options.control is not None:
        control = training.trained_stacks(RunDirectory.open(options.control))
    chosen = [analysis.Layer.parse(layer) for layer in options.layers]
    chosen = chosen or list(analysis.top_layers(own.network, "output"))
    analysis.StackLayers(own.network, chosen)  # refuses a missing layer before any computation
    as_image_transform(own.prepared.transform)  # refuses other kinds of data before sources are read
    examination = analysis.SelectivitySettings(chosen, splits=options.splits, weights=options.weights)
    store = _training_store(directory, options)
    return _TestContext(recipe, own, control, store, examination, options.display)


def _training_store(directory: RunDirectory, options: EvaluationOptions) -> Store | None:
    """Return the store of the run's training images; None if missing, as in a copied run."""
    try:
        with options.display.count("preparing", "images") as advance:
            return training.store_of(directory, stores=options.stores, progress=advance)
    except (SourceError, StoreError, RecipeError) as error:
        options.display.show(
            f"the run's training images are not available ({error}), so k-means is skipped, random filters "
            "are scaled by the test images, and stimuli start from noise"
        )
        return None


def _earlier_results(directory: RunDirectory, field: _TestContext) -> analysis.Evaluation:
    """Return the earlier results for this step, to which new ones are added."""
    try:
        found = analysis.Evaluation.read(directory.evaluation)
    except RunError as error:
        aside = rename_damaged(directory.evaluation).name
        field.display.show(f"the earlier evaluation cannot be read and was renamed to {aside}: {error}")
        found = None
    step = field.trained.step
    return found if found is not None and found.step == step else analysis.Evaluation(step)


def _baselines(field: _TestContext, told: Stages) -> tuple[MakeBaselines, Clustering | None]:
    """Return a function that makes the baselines of a test set, and the clustering of the dictionary."""
    network, recipe = field.trained.network, field.recipe
    if field.store is None:
        return partial(_compute_baselines, field, None, None), None
    assert isinstance(recipe.training, StackTraining), "baselines are of neurons in stacks"
    epochs = recipe.network.stacks[-1].epochs or recipe.training.epochs
    dictionary, clustering = analysis.kmeans_network(
        network,
        field.unlabelled,
        passes_max=max(math.ceil(epochs), analysis.PASSES_MAX),
        progress=partial(told, "k-means dictionary"),
    )
    random = training.random_stacks(recipe, next(iter(field.unlabelled())))
    return partial(_compute_baselines, field, dictionary, random), clustering


def _compute_baselines(
    field: _TestContext,
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
        *sources,
        as_image_transform(trained.prepared.transform),
        batch=training_.batch_size,
        device=training_.device,
    )


def _tested(
    field: _TestContext,
    compared: analysis.Baselines,
    name: str,
    test_set: analysis.ObjectTestSet,
    told: Stages,
) -> analysis.ObjectSelectivity:
    return analysis.score_object(
        name,
        field.trained.network,
        compared,
        test_set,
        field.settings,
        unlabelled=partial(field.unlabelled, _UNLABELLED) if field.store is not None else None,
        transform=as_image_transform(field.trained.prepared.transform),
        original_of=test_set.original_of,
        progress=lambda doing, done: told(f"{name}, {doing}", done),
    )


def _few_labels(
    field: _TestContext,
    compared: analysis.Baselines,
    name: str,
    test_set: analysis.ObjectTestSet,
    settings: analysis.FewLabelSettings,
    told: Stages,
) -> analysis.FewLabels:
    return analysis.few_labels(
        field.trained.network,
        compared,
        test_set,
        settings,
        progress=lambda doing, done: told(f"{name}, {doing}", done),
    )

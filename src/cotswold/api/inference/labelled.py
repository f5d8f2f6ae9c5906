"""Evaluation of a supervised run on labelled samples, of a split of the run's store or of another source.

Knows: the samples on which a run is evaluated, the matching of class names. Does not know: counting of
answers, what a metric computes, display.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.arguments import check_path
from cotswold.api.run import Run
from cotswold.errors import SourceError, StoreError, UserError
from cotswold.phrases import counted
from cotswold.ui.display import Display

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from cotswold.analysis import Classification, Regression
    from cotswold.data import SampleStream, Source, Store, VectorSource
    from cotswold.data.sources.file_names import Labels
    from cotswold.recipe import Recipe
    from cotswold.training import LayerNetwork, SampleSpec, Trained
    from cotswold.training.metrics.metric_set import MetricSet
    from cotswold.training.metrics.registry import MetricSource

EXAMPLES = 8
"""Number of images kept of correct and of wrong classifications."""
_SHOWN = 3


def evaluate_split(
    run: Run, split: str | None, metrics: Sequence[MetricSource] | None, display: Display
) -> Classification | Regression:
    """Return the accuracy or errors on a split of the run's own store [test, or validation without one].

    ``metrics`` are measured too; None means those of the recipe.

    Raises UserError without such a split, SourceError, StoreError.
    """
    from cotswold import analysis, training

    directory, recipe = run.directory, run.recipe
    trained = training.trained_layers(directory)
    try:
        with display.count("preparing", "samples") as advance:
            store = training.store_of(directory, stores=run.stores, progress=advance)
    except SourceError as error:
        raise SourceError(
            f"the run's own labelled samples are not available ({error}); copy "
            "them or their store (--stores, Python: stores=), or give other samples (--source, Python: "
            "source=)"
        ) from error
    if store.identity != trained.prepared.store:
        raise StoreError(
            f"the store {store.path} is not the one that {directory.path} learnt from; give the run's own "
            "(--stores, Python: stores=)"
        )
    chosen = _split_of(store, split)
    measured = _Measured.of(run, trained, metrics, training.labelled_batches(store, recipe, chosen))
    if store.targets:
        errors = measured.errors(analysis.regress(measured, measured, step=trained.step, split=chosen))
        if split is None:
            errors.write(directory.regression)
        return errors
    found = analysis.classify(
        measured,
        measured,
        store.classes,
        step=trained.step,
        split=chosen,
        examples=EXAMPLES if store.kind == "images" else 0,  # vectors cannot be displayed
    )
    found = measured.answers(found)
    if split is None:
        found.write(directory.classification)
    return found


def evaluate_source(
    run: Run,
    source: object,
    labels: Labels | None,
    metrics: Sequence[MetricSource] | None,
    display: Display,
) -> Classification | Regression:
    """Return the accuracy or errors on labelled samples of a source, prepared like the run's own.

    Raises SourceError for a source without labels, or with classes that the run did not learn.
    """
    from cotswold import analysis, training
    from cotswold.api.inference.inputs import InferenceInputs, open_inputs
    from cotswold.data import open_samples, stream

    recipe = run.recipe
    trained = training.trained_layers(run.directory)
    prepared = trained.prepared
    kind = prepared.transform.preparation.kind
    found: Source | VectorSource
    if kind == "table":
        found = open_inputs(source, prepared.transform, "file")
    else:
        check_path("the source", source)
        found = open_samples(str(source), kind, labels=labels or _labels_of(recipe, kind))
    name = str(source) if isinstance(source, str | Path) else "the table"
    wanted = _expected_answers(found, prepared, name)
    work = InferenceInputs(
        source=found,
        samples=stream(found, prepared.transform, recipe.training.batch_size),
        device=recipe.training.device,
        display=display,
    )
    measured = _Measured.of(run, trained, metrics, _batches(work.samples, wanted, work.device))
    step = trained.step
    if prepared.targets:
        errors = analysis.regress(measured, measured, step=step, split=name)
        work.skipped()
        work.table_notes()
        return measured.errors(errors)
    examples = EXAMPLES if kind == "images" else 0
    classes = prepared.classes
    answers = analysis.classify(measured, measured, classes, step=step, split=name, examples=examples)
    work.skipped()
    work.table_notes()
    return measured.answers(answers)


class _Measured:
    """A network with its labelled batches, which also measures metrics of all outputs.

    Outputs are in the units of the targets.
    """

    def __init__(
        self,
        network: Callable[[Tensor], Tensor],
        batches: Iterable[tuple[Tensor, Tensor]],
        metrics: MetricSet,
        targets: tuple[str, ...] = (),
    ) -> None:
        self._targets = targets
        self._network, self._batches, self._metrics = network, batches, metrics
        self._wanted: Tensor | None = None

    @classmethod
    def of(
        cls,
        run: Run,
        trained: Trained[LayerNetwork],
        metrics: Sequence[MetricSource] | None,
        batches: Iterable[tuple[Tensor, Tensor]],
    ) -> _Measured:
        """Return the network of a run with metrics; None means those of its recipe."""
        from cotswold.training.losses import loss_of
        from cotswold.training.metrics.metric_set import MetricSet

        given = getattr(run.recipe.training, "metrics", ()) if metrics is None else metrics
        measured = MetricSet(given, loss_of(run.recipe))
        spec = trained.prepared
        return cls(
            lambda samples: spec.predicted(trained.network(samples)), batches, measured, spec.target_names
        )

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for samples, wanted in self._batches:
            self._wanted = wanted
            yield samples, wanted

    def __call__(self, samples: Tensor) -> Tensor:
        """Return the outputs for the samples of the last batch."""
        outputs = self._network(samples)
        assert self._wanted is not None, "a batch was read"
        self._metrics.update(outputs, self._wanted)
        return outputs

    def answers(self, found: Classification) -> Classification:
        """Return a classification with its metrics."""
        return replace(found, metrics={"accuracy": found.accuracy, **self._values()})

    def errors(self, found: Regression) -> Regression:
        """Return regression errors with their metrics and the names of targets."""
        metrics = {"loss": found.loss, **self._values()}
        return replace(found, metrics=metrics, targets=self._targets)

    def _values(self) -> dict[str, float | None]:
        return {name: each if isfinite(each) else None for name, each in self._metrics.compute().items()}


def _split_of(store: Store, split: str | None) -> str:
    """Return a split with samples. Raises UserError if there is none other than train."""
    there = [name for name, count in store.splits.items() if count]
    if split is None:
        for each in ("test", "validation"):
            if each in there:
                return each
        raise UserError(
            f"{store.path} has neither test nor validation samples, and the accuracy on training samples "
            "does not predict that on others; give labelled samples (--source, Python: "
            "source=), or use --split train (Python: split=)"
        )
    if split not in there:
        raise UserError(f"{store.path} has no samples for {split!r}; its splits are {', '.join(there)}")
    return split


def _labels_of(recipe: Recipe, kind: str) -> Labels:
    """Return the kind of labels of the run's own samples."""
    own: Labels = getattr(recipe.data, "labels", "none")
    if recipe.data.store is None and own != "none":
        return own
    return "file" if kind == "vectors" else "folders"


def _expected_answers(source: Source | VectorSource, prepared: SampleSpec, name: str) -> NDArray[np.generic]:
    """Return the correct answer for each sample of a source: a class of the run, or regression targets."""
    import numpy as np

    if not source.classes and not source.targets:
        raise SourceError(
            f"{name} has no labels; label its samples like those of the run, or use cotswold "
            "predict for their classes"
        )
    labels = source.labels(np.arange(len(source)))
    if bool(source.targets) != bool(prepared.targets) or source.targets != prepared.targets:
        raise SourceError(
            f"{name} has {_describe_answers(len(source.classes), source.targets)}, but the run learnt "
            f"{_describe_answers(len(prepared.classes), prepared.targets)}; give samples with the same kind "
            "of labels"
        )
    if source.targets:
        return labels
    present = [source.classes[number] for number in np.unique(labels[labels >= 0]).tolist()]
    strange = [each for each in present if each not in prepared.classes]
    if strange:
        known = ", ".join(prepared.classes[:_SHOWN]) + (", …" if len(prepared.classes) > _SHOWN else "")
        raise SourceError(
            f"{name} has {counted(len(strange), 'class')} that the run did not learn "
            f"({', '.join(strange[:_SHOWN])}); "
            f"it learnt {known}; remove their samples, or label them like the run's"
        )
    if (labels < 0).any():
        raise SourceError(f"{int((labels < 0).sum())} samples of {name} have no label; remove them")
    number = {each: at for at, each in enumerate(prepared.classes)}
    own = np.array([number.get(each, -1) for each in source.classes], np.int64)
    found: NDArray[np.generic] = own[labels]
    return found


def _describe_answers(classes: int, targets: int) -> str:
    return counted(targets, "regression target") if targets else counted(classes, "class")


def _batches(
    samples: SampleStream, wanted: NDArray[np.generic], device: str
) -> Iterator[tuple[Tensor, Tensor]]:
    import torch

    for maps, indices in samples:
        yield maps.to(device), torch.from_numpy(wanted[indices.numpy()]).to(device)

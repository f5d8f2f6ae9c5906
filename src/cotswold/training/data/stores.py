"""The store that a recipe names, prepared if it does not exist yet.

Knows: how a recipe's `[data]` becomes a preparation, where stores are kept. Does not know: networks, runs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from cotswold.data import (
    AnyPreparation,
    Preparation,
    Source,
    Store,
    VectorPreparation,
    VectorSource,
    open_source,
    open_vectors,
    prepare,
    table,
)
from cotswold.data.sources.base import samples_noun
from cotswold.data.sources.tables import TableSource
from cotswold.data.store.splits import rule
from cotswold.errors import RecipeError, SourceError, UnlabelledError
from cotswold.recipe import Recipe, expand
from cotswold.recipe.schema import (
    Data,
    DownpourTraining,
    FrameData,
    ImageData,
    LossObjective,
    SourcedData,
    SteppedTraining,
    TableData,
    VectorData,
    pair,
)
from cotswold.recipe.schema.fields import byte_count

STORES = Path("stores")
"""The default folder of prepared samples."""

_FEW_SAMPLES_PER_CLASS = 5
"""The mean samples per class below which whole-number labels are probably not classes."""
Progress = Callable[[int, int], None]
"""Receives the number of finished samples and their total."""


def preparation_of(data: Data) -> AnyPreparation:
    """Return the preparation of a recipe's `[data]`.

    For vectors their source is opened, because it has the number of features. Raises RecipeError for a data
    set of a Python program, SourceError for an unreadable source.
    """
    if isinstance(data, VectorData | FrameData | TableData):
        source = source_of(data)
        assert isinstance(source, VectorSource), "of its kind"
        return _vector_preparation(data, source)
    images = images_of(data)
    return Preparation(
        size=pair(images.size),
        colour=images.colour,
        per_image_standardise=images.per_image_standardise,
        whiten=images.whiten,
        whiten_cutoff=images.whiten_cutoff,
        unit_rms=images.unit_rms,
        dtype=images.dtype,
    )


def _vector_preparation(data: VectorData | FrameData | TableData, source: VectorSource) -> VectorPreparation:
    if isinstance(data, TableData):
        assert isinstance(source, TableSource), "of its kind"
        if data.width not in (None, source.features):
            raise RecipeError(
                f"data.width is {data.width}, but the rows of {data.source} have {source.features} features; "
                "omit it"
            )
        return source.preparation(standardise=data.standardise, dtype=data.dtype, context=data.context)
    if data.features not in (None, source.features):
        raise RecipeError(
            f"data.features is {data.features}, but {data.source} has {source.features} per "
            f"{data.type[:-1]}; omit it"
        )
    context = data.context if isinstance(data, FrameData) else 0
    return VectorPreparation(
        source.features, data.type, context, data.standardise, data.dtype, rate=source.rate
    )


def images_of(data: Data) -> ImageData:
    """Return a recipe's `[data]` of images; raises RecipeError for another type."""
    if not isinstance(data, ImageData):
        raise RecipeError(f'data.type is "{data.type}"; this needs images')
    return data


def source_of(data: Data) -> Source | VectorSource:
    """Return the source that a recipe's `[data]` names.

    Raises SourceError, or RecipeError (an unset environment variable, a data set of a Python program).
    """
    if not isinstance(data, SourcedData):
        raise RecipeError("the data set is given from Python; this needs a source in files")
    assert data.source is not None, "the schema wants one of source and store"
    place = expand(data.source)
    if isinstance(data, TableData):
        return _table_of(data, place)
    if isinstance(data, VectorData):
        return open_vectors(place, labels=data.labels)
    if isinstance(data, FrameData):
        return open_vectors(place, "frames", include=data.include, exclude=data.exclude, labels=data.labels)
    images = images_of(data)
    return open_source(place, include=images.include, exclude=images.exclude, labels=images.labels)


def _table_of(data: TableData, place: str) -> TableSource:
    return table(
        place,
        target=data.target,
        features=data.features,
        ignore=data.ignore,
        test_source=None if data.test_source is None else expand(data.test_source),
        target_kind=data.target_kind,
        categorical=data.categorical,
        missing=data.missing,
        missing_values=data.missing_values,
        new_categories=data.new_categories,
        delimiter=data.delimiter,
        header=data.header,
        decimal=data.decimal,
        sequence=data.sequence,
    )


def _source_for(recipe: Recipe) -> Source | VectorSource:
    """Return the source of a recipe; if the strategy needs labels, errors do not suggest omitting them."""
    try:
        return source_of(recipe.data)
    except UnlabelledError as error:
        if recipe.trains_stacks:
            raise
        raise SourceError(error.message_with_remedy) from error


def recipe_preparation(data: Data) -> AnyPreparation:
    """Return the preparation of a recipe's samples; raises StoreError for a missing store."""
    return preparation_of(data) if data.store is None else Store(expand(data.store)).transform.preparation


def open_store(
    recipe: Recipe,
    stores: Path,
    progress: Progress | None = None,
    check: Callable[[str], None] | None = None,
) -> Store:
    """Return the recipe's store; samples of a source are prepared if no store exists yet.

    Args:
        recipe: The recipe.
        stores: The folder of prepared stores.
        progress: Receives the progress of the preparation.
        check: Receives the identity of the source before the preparation, and may raise an error.

    Returns:
        The store.

    Raises:
        SourceError: If the samples cannot be read.
        StoreError: If the store is damaged or missing.
        RecipeError: If an environment variable is not set, or the data set comes from Python.
    """
    data = recipe.data
    if data.store is not None:
        return Store(expand(data.store))
    source = _source_for(recipe)
    if check is not None:
        check(source.identity)
    assert isinstance(data, ImageData | VectorData | FrameData | TableData), "it has a source"
    preparation = (
        _vector_preparation(data, source)
        if isinstance(source, VectorSource) and not isinstance(data, ImageData)
        else preparation_of(data)
    )
    decided = rule(source, data.splits)
    choices = [
        preparation.state(),
        source.identity,
        decided.splits,
        data.validation,
        data.test,
        data.limit,
        data.labels,
        *(["test by name"] if decided.test_by_name else []),
        *(["validation by name"] if decided.validation_by_name else []),
    ]
    short = hashlib.sha256(json.dumps(choices, sort_keys=True).encode()).hexdigest()[:10]
    path = stores / f"{recipe.name}-{short}"
    prepare(
        source,
        path,
        preparation,
        splits=data.splits,
        validation=data.validation,
        test=data.test,
        limit=data.limit,
        progress=progress,
    )
    return Store(path)


def with_features(recipe: Recipe) -> Recipe:
    """Return the recipe with its source's number of features, if it needs one and does not give it."""
    data = recipe.data
    if not isinstance(data, VectorData | FrameData | TableData) or data.store is not None:
        return recipe
    field = _features_field(data)
    if getattr(data, field) is not None:
        return recipe
    source = source_of(data)
    assert isinstance(source, VectorSource), "of its kind"
    return recipe.model_copy(update={"data": data.model_copy(update={field: source.features})})


def _features_field(data: VectorData | FrameData | TableData) -> str:
    """Return the field with the number of features of a sample."""
    return "width" if isinstance(data, TableData) else "features"


def with_features_of(recipe: Recipe, began: Recipe) -> Recipe:
    """Return the recipe with the original recipe's number of features, unless it gives one."""
    data, kept = recipe.data, began.data
    vectors = VectorData | FrameData | TableData
    if not isinstance(data, vectors) or not isinstance(kept, vectors) or type(data) is not type(kept):
        return recipe
    field = _features_field(data)
    if getattr(data, field) is not None:
        return recipe
    return recipe.model_copy(update={"data": data.model_copy(update={field: getattr(kept, field)})})


def with_store_shape(recipe: Recipe, store: Store) -> Recipe:
    """Return the recipe with the shape of its store: size and colour of images, features and context of
    vectors.

    Raises RecipeError for a store without training samples, or with samples of another type.
    """
    if store.splits.get("train", 0) == 0:
        raise RecipeError(f"the store {store.path} has no training samples; prepare a larger source")
    data = recipe.data
    if data.type != store.kind:
        raise RecipeError(
            f'data.type is "{data.type}", but {store.path} holds {store.kind}; set data.type to that'
        )
    if isinstance(recipe.objective, LossObjective):
        _check_outputs(store, recipe.loss, recipe.training.strategy, recipe.network.output)
    preparation = store.transform.preparation
    if isinstance(preparation, VectorPreparation):
        context = {} if preparation.kind == "vectors" else {"context": preparation.context}
        field = "width" if preparation.kind == "table" else "features"
        update: dict[str, object] = {field: preparation.features, **context}
    elif data.store is None:
        return recipe
    else:
        shape = store.shape
        colours = {3: "rgb", 1: "grey"}
        update = {"size": (shape.height, shape.width), "colour": colours[shape.channels]}
    return recipe.model_copy(update={"data": data.model_copy(update=update)})


def warnings(recipe: Recipe, store: Store) -> list[str]:
    """Return warnings about a run's samples before training."""
    return [
        *_label_warnings(recipe, store),
        *_validation_warnings(recipe, store),
        *_cache_warnings(recipe, store),
    ]


def _label_warnings(recipe: Recipe, store: Store) -> list[str]:
    """Return a warning if integer labels look like regression targets instead of classes."""
    if not isinstance(recipe.objective, LossObjective) or recipe.loss != "squared_error":
        return []
    if not store.classes or not all(name.lstrip("-").isdigit() for name in store.classes):
        return []
    labels, classes = store.labels("train"), len(store.classes)
    if len(np.unique(labels[labels >= 0])) == classes and len(labels) >= _FEW_SAMPLES_PER_CLASS * classes:
        return []
    remedy = 'set data.target_kind = "number"' if store.kind == "table" else "save them as floats"
    return [
        f"the labels are integers, and are used as the names of {classes:,} classes; for regression {remedy}"
    ]


def _cache_warnings(recipe: Recipe, store: Store) -> list[str]:
    data = recipe.data
    if not isinstance(data, SourcedData) or not data.servers or isinstance(data.servers, str):
        return []
    from cotswold.data.loading.served_store import needed_cache_bytes, shards_of

    if isinstance(recipe.training, SteppedTraining):
        needed, what = needed_cache_bytes(store), "fewer shards than the shuffle buffer draws from"
    elif isinstance(recipe.training, DownpourTraining):
        shards = shards_of(store, "train", None)
        needed = shards.count * shards.slot_bytes
        what = "only part of the samples, which are dealt at random"
    else:  # each sample is requested once, then cached
        return []
    if byte_count(data.cache) >= needed:
        return []
    enough = f"{-(-needed // 10**6)} MB"
    return [
        f'data.cache = "{data.cache}" holds {what}, so servers read shards repeatedly; with "{enough}" few '
        "shards are read twice in an epoch"
    ]


def _validation_warnings(recipe: Recipe, store: Store) -> list[str]:
    if store.splits.get("validation") or not isinstance(recipe.objective, LossObjective):
        return []
    asked = getattr(recipe.data, "validation", None)
    count = store.splits["train"]
    why = f": data.validation = {asked:g} of {count:,} samples is less than one" if asked else ""
    return [f"there is no validation split{why}, so overfitting will go unnoticed"]


def _check_outputs(store: Store, loss: str, strategy: str, output: str) -> None:
    """Raise RecipeError if the labels of a store do not fit the loss or the outputs."""
    if store.targets:
        if store.target_scale is not None and output != "linear":
            raise RecipeError(
                f'network.output = "{output}" cannot reach the regression targets in {store.path}, which are '
                'standardised; set network.output to "linear", or data.standardise to false and scale the '
                "numbers yourself"
            )
        if loss not in ("squared_error", "custom"):
            raise RecipeError(
                f'the labels in {store.path} are regression targets, but objective.loss = "{loss}" needs '
                'classes: set it to "squared_error", or label the samples by integers or texts (in a table: '
                'data.target_kind = "class")'
            )
        return
    if not store.classes:
        remedies = {
            "vectors": 'data.labels = "file", labels in the .npz, or in name.labels.npy next to it',
            "table": "data.target, the column to predict",
        }
        remedy = remedies.get(store.kind, 'data.labels = "folders", one folder per class')
        raise RecipeError(
            f"the {samples_noun(store.kind)} in {store.path} have no labels, which strategy {strategy} "
            "needs; add "
            f"them: {remedy}"
        )
    labels = store.labels("train")
    present = np.unique(labels[labels >= 0])
    if len(present) < 2:
        found = f"of one class, {store.classes[int(present[0])]!r}" if len(present) else "without a class"
        raise RecipeError(
            f"all {len(labels):,} training {samples_noun(store.kind)} in {store.path} are {found}; "
            f"strategy {strategy} "
            "needs two or more classes (regression targets are "
            "floating-point labels)"
        )


def class_count(recipe: Recipe) -> int:
    """Return the number of outputs for the recipe's labels: one per class or regression target.

    Raises RecipeError if there are no labels.
    """
    found: Store | Source | VectorSource = (
        source_of(recipe.data) if recipe.data.store is None else Store(expand(recipe.data.store))
    )
    outputs = len(found.classes) or found.targets
    if not outputs:
        remedy = "data.target" if found.kind == "table" else "data.labels to folders or file"
        raise RecipeError(f"the {samples_noun(found.kind)} have no labels; set {remedy}")
    return outputs

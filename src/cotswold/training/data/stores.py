"""The store that a recipe names, made where it does not exist yet.

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
)
from cotswold.data.store.splits import rule
from cotswold.errors import RecipeError, SourceError, UnlabelledError
from cotswold.recipe import Recipe, expand
from cotswold.recipe.schema import (
    Data,
    DownpourTraining,
    FrameData,
    LossObjective,
    PictureData,
    SourcedData,
    SteppedTraining,
    VectorData,
    pair,
)
from cotswold.recipe.schema.fields import byte_count

STORES = Path("stores")
"""Where prepared samples are kept unless another place is named."""

_FEW = 5
"""Samples of a class, on average, below which whole numbers are hardly classes."""
Progress = Callable[[int, int], None]
"""Hears how many of how many samples are done."""


def preparation_of(data: Data) -> AnyPreparation:
    """The preparation that a recipe's `[data]` asks for.

    That of vectors opens their source, which knows how many features there are. Raises RecipeError for data
    that are given from Python, SourceError.
    """
    if isinstance(data, VectorData | FrameData):
        source = source_of(data)
        assert isinstance(source, VectorSource), "of its kind"
        return _prepared_as(data, source)
    pictures = pictures_of(data)
    return Preparation(
        size=pair(pictures.size),
        colour=pictures.colour,
        contrast=pictures.contrast,
        whiten=pictures.whiten,
        band=pictures.band,
        unit=pictures.unit,
        dtype=pictures.dtype,
    )


def _prepared_as(data: VectorData | FrameData, source: VectorSource) -> VectorPreparation:
    if data.features not in (None, source.features):
        raise RecipeError(
            f"data.features is {data.features}, but {data.source} has {source.features} a "
            f"{data.type[:-1]}; leave "
            "it out"
        )
    context = data.context if isinstance(data, FrameData) else 0
    return VectorPreparation(source.features, data.type, context, data.standardise, data.dtype)


def pictures_of(data: Data) -> PictureData:
    """A recipe's `[data]` that is of pictures; raises RecipeError for another type."""
    if not isinstance(data, PictureData):
        raise RecipeError(f'data.type is "{data.type}"; pictures are needed here')
    return data


def source_of(data: Data) -> Source | VectorSource:
    """The source that a recipe's `[data]` names. Raises SourceError, RecipeError (an environment variable
    that is not set, data that are given from Python)."""
    if not isinstance(data, SourcedData):
        raise RecipeError("the data set is given from Python; this needs a source in files")
    assert data.source is not None, "the schema wants one of source and store"
    place = expand(data.source)
    if isinstance(data, VectorData):
        return open_vectors(place, labels=data.labels)
    if isinstance(data, FrameData):
        return open_vectors(place, "frames", include=data.include, exclude=data.exclude, labels=data.labels)
    pictures = pictures_of(data)
    return open_source(place, include=pictures.include, exclude=pictures.exclude, labels=pictures.labels)


def _source_for(recipe: Recipe) -> Source | VectorSource:
    """As `source_of`; an error does not advise to do without labels where the strategy needs them."""
    try:
        return source_of(recipe.data)
    except UnlabelledError as error:
        if recipe.trains_stacks:
            raise
        raise SourceError(error.needing_labels) from error


def made_by(data: Data) -> AnyPreparation:
    """How the samples of a recipe are or were prepared; raises StoreError for a store that is not there."""
    return preparation_of(data) if data.store is None else Store(expand(data.store)).transform.preparation


def open_store(
    recipe: Recipe,
    stores: Path,
    progress: Progress | None = None,
    check: Callable[[str], None] | None = None,
) -> Store:
    """The recipe's store; samples of a source are prepared under ``stores`` unless they have been.

    ``check`` gets the identity of the source before anything is prepared, and may raise an error. Raises
    SourceError, StoreError, RecipeError (an environment variable that is not set).
    """
    data = recipe.data
    if data.store is not None:
        return Store(expand(data.store))
    source = _source_for(recipe)
    if check is not None:
        check(source.identity)
    assert isinstance(data, PictureData | VectorData | FrameData), "it has a source"
    preparation = (
        _prepared_as(data, source)
        if isinstance(source, VectorSource) and not isinstance(data, PictureData)
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
    """The recipe with the number of features that its source has, where it needs one and does not say it."""
    data = recipe.data
    if not isinstance(data, VectorData | FrameData) or data.store is not None or data.features is not None:
        return recipe
    source = source_of(data)
    assert isinstance(source, VectorSource), "of its kind"
    return recipe.model_copy(update={"data": data.model_copy(update={"features": source.features})})


def with_features_of(recipe: Recipe, began: Recipe) -> Recipe:
    """The recipe with the number of features that it began with, where it does not say it."""
    data, kept = recipe.data, began.data
    if not isinstance(data, VectorData | FrameData) or not isinstance(kept, VectorData | FrameData):
        return recipe
    if data.features is not None:
        return recipe
    return recipe.model_copy(update={"data": data.model_copy(update={"features": kept.features})})


def with_store_shape(recipe: Recipe, store: Store) -> Recipe:
    """The recipe with what a store that was prepared apart decides: the size and colour of pictures, the
    features and context of vectors; raises RecipeError without samples, or for samples of another type."""
    if store.splits.get("train", 0) == 0:
        raise RecipeError(f"the store {store.path} has no samples for training; prepare a larger source")
    data = recipe.data
    if data.type != store.kind:
        raise RecipeError(
            f'data.type is "{data.type}", but {store.path} holds {store.kind}; set data.type to that'
        )
    if isinstance(recipe.objective, LossObjective):
        _check_outputs(store, recipe.loss, recipe.training.strategy, recipe.network.output)
    preparation = store.transform.preparation
    if isinstance(preparation, VectorPreparation):
        context = {"context": preparation.context} if preparation.kind == "frames" else {}
        update: dict[str, object] = {"features": preparation.features, **context}
    elif data.store is None:
        return recipe
    else:
        shape = store.shape
        colours = {3: "rgb", 1: "grey"}
        update = {"size": (shape.height, shape.width), "colour": colours[shape.channels]}
    return recipe.model_copy(update={"data": data.model_copy(update=update)})


def warnings(recipe: Recipe, store: Store) -> list[str]:
    """What a person should know of a run's samples before it is trained."""
    return [*_of_numbers(recipe, store), *_of_validation(recipe, store), *_of_cache(recipe, store)]


def _of_numbers(recipe: Recipe, store: Store) -> list[str]:
    """Whole numbers that look as if they were to be predicted, and not the names of classes."""
    if not isinstance(recipe.objective, LossObjective) or recipe.loss != "squared":
        return []
    if not store.classes or not all(name.lstrip("-").isdigit() for name in store.classes):
        return []
    labels, classes = store.labels("train"), len(store.classes)
    if len(np.unique(labels[labels >= 0])) == classes and len(labels) >= _FEW * classes:
        return []
    return [
        f"the labels are whole numbers, and are taken for the names of {classes:,} classes; to predict the "
        "numbers themselves save them as floats"
    ]


def _of_cache(recipe: Recipe, store: Store) -> list[str]:
    data = recipe.data
    if not isinstance(data, SourcedData) or not data.servers or isinstance(data.servers, str):
        return []
    from cotswold.data.service.store import needed_cache_bytes, shards_of

    if isinstance(recipe.training, SteppedTraining):
        needed, what = needed_cache_bytes(store), "fewer shards than the shuffle buffer has samples of"
    elif isinstance(recipe.training, DownpourTraining):
        shards = shards_of(store, "train", None)
        needed = shards.count * shards.slot_bytes
        what = "a part of the samples, which are dealt at random"
    else:  # each sample is asked for once, and kept
        return []
    if byte_count(data.cache) >= needed:
        return []
    enough = f"{-(-needed // 10**6)} MB"
    return [
        f'data.cache = "{data.cache}" holds {what}: servers read shards again and again; "{enough}" reads '
        "few of them twice in an epoch"
    ]


def _of_validation(recipe: Recipe, store: Store) -> list[str]:
    if store.splits.get("validation") or not isinstance(recipe.objective, LossObjective):
        return []
    asked = getattr(recipe.data, "validation", None)
    count = store.splits["train"]
    why = f": data.validation = {asked:g} of {count:,} samples is none" if asked else ""
    return [f"there are no samples for validation{why}; nothing will tell when the network learns by heart"]


def _check_outputs(store: Store, loss: str, strategy: str, output: str) -> None:
    """Raise RecipeError where a network that learns from labels cannot learn from those of a store."""
    if store.targets:
        if store.target_scale is not None and output != "linear":
            raise RecipeError(
                f'network.output = "{output}" cannot give the numbers to predict in {store.path}, which are '
                'standardised; set network.output to "linear", or data.standardise to false and scale the '
                "numbers yourself"
            )
        if loss not in ("squared", "custom"):
            raise RecipeError(
                f'the labels in {store.path} are numbers to predict; objective.loss = "{loss}" wants '
                "classes: set "
                'it to "squared", or label the samples by whole numbers or texts'
            )
        return
    if not store.classes:
        remedy = (
            'data.labels = "folders", one folder a class'
            if store.kind != "vectors"
            else 'data.labels = "file", labels in the .npz, or in name.labels.npy beside'
        )
        raise RecipeError(
            f"the {store.kind} in {store.path} have no labels, which strategy {strategy} learns from; give "
            f"some: {remedy}"
        )
    labels = store.labels("train")
    present = np.unique(labels[labels >= 0])
    if len(present) < 2:
        found = f"of one class, {store.classes[int(present[0])]!r}" if len(present) else "without a class"
        raise RecipeError(
            f"all {len(labels):,} {store.kind} for training in {store.path} are {found}; strategy {strategy} "
            "tells classes apart: give samples of two or more (numbers to predict instead of classes are "
            "floating-point labels)"
        )


def class_count(recipe: Recipe) -> int:
    """How many outputs a network has that learns the recipe's labels: one a class, or one for each number to
    predict; raises RecipeError where there are no labels."""
    found: Store | Source | VectorSource = (
        source_of(recipe.data) if recipe.data.store is None else Store(expand(recipe.data.store))
    )
    outputs = len(found.classes) or found.targets
    if not outputs:
        raise RecipeError(f"the {found.kind} have no labels; set data.labels to folders or file")
    return outputs

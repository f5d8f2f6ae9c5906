"""Predicted time, bytes and cost of evaluations of strategy `batch` on a described cluster.

Knows: the combination of a cluster, a recipe and its data. Does not know: the prediction, display.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cotswold.api.request import override_list, recipe_name
from cotswold.api.simulate import RANKS_PER_DEVICE
from cotswold.errors import RecipeError, SourceError, UserError
from cotswold.ui.display import display_for

if TYPE_CHECKING:
    from cotswold.recipe import Recipe
    from cotswold.simulate import Cluster, EvaluationPrediction


@dataclass(frozen=True)
class PredictedEvaluations:
    """Predictions for a recipe with strategy `batch` on a cluster.

    Args:
        cluster: The cluster.
        recipe: The recipe.
        samples: Number of training samples.
        outputs: Outputs of the network.
        evaluations: One prediction for each number of workers.
    """

    cluster: Cluster
    recipe: Recipe
    samples: int
    """Number of training samples."""
    outputs: int
    evaluations: tuple[EvaluationPrediction, ...]
    """One prediction for each number of workers."""


def predict_evaluations(
    cluster: str | Path | Cluster,
    recipe: str | Path | Recipe,
    *,
    workers: int | Sequence[int] | None = None,
    samples: int | None = None,
    outputs: int | None = None,
    overrides: Mapping[str, object] | Sequence[str] = (),
    progress: bool | None = None,
) -> PredictedEvaluations:
    """Predict the time of an evaluation of value and gradient on a cluster, without running anything.

    Args:
        cluster: As for `predict_updates`.
        recipe: A recipe with strategy `batch`, or its name or path.
        workers: Number of workers, or several numbers. [all devices]
        samples: Number of training samples. [from the recipe's data, which must be available]
        outputs: Outputs of the network: classes or regression targets. [from the recipe's data]
        overrides: Changed fields of the recipe, ``{"training.epochs": 2}`` or ``["training.epochs=2"]``.
        progress: Show progress. [if on a terminal or in a notebook]

    Raises:
        ClusterError: if the description of the cluster is invalid.
        RecipeError: if the recipe is invalid.
        UserError: for other strategies, or more workers than the devices can have.
    """
    from cotswold import recipe as recipes
    from cotswold import simulate
    from cotswold.recipe.schema import BatchTraining

    known = cluster if isinstance(cluster, simulate.Cluster) else simulate.load_cluster(cluster)
    with recipe_name(recipe) as name:
        assert name is not None, "there is a recipe"
        wanted = recipes.load(name, override_list(overrides), display_for(progress).show)
    if not isinstance(wanted.training, BatchTraining):
        raise UserError(
            f"{wanted.name} has strategy {wanted.training.strategy}, but evaluations exist only in batch; "
            "use predict_updates for other strategies"
        )
    wanted, samples, outputs = _complete_from_data(wanted, samples, outputs)
    work = simulate.batch_work(wanted, samples, outputs)
    found = tuple(simulate.predict_evaluation(known, work, count) for count in _counts(known, workers))
    return PredictedEvaluations(known, wanted, samples, outputs, found)


def _complete_from_data(recipe: Recipe, samples: int | None, outputs: int | None) -> tuple[Recipe, int, int]:
    """Return the recipe with the shape of its samples, and the missing arguments from its data."""
    if recipe.network.module is not None:
        return recipe, samples or 1, outputs or 1  # which simulate refuses
    from cotswold.api.plan.base import training_samples
    from cotswold.training.data.stores import class_count, open_store, with_features, with_store_shape

    if recipe.data.store is not None:
        recipe = with_store_shape(recipe, open_store(recipe, Path()))
    elif not recipe.input_known:
        recipe = with_features(recipe)
    if samples is not None and outputs is not None:
        return recipe, samples, outputs
    try:
        return (
            recipe,
            training_samples(recipe)[0] if samples is None else samples,
            class_count(recipe) if outputs is None else outputs,
        )
    except (RecipeError, SourceError) as error:
        raise type(error)(
            f"{error}; or give the numbers of samples and outputs in place of the data: "
            "--samples and --outputs (Python: samples=, outputs=)"
        ) from error


def _counts(cluster: Cluster, workers: int | Sequence[int] | None) -> list[int]:
    counts = [workers] if isinstance(workers, int) else list(workers or [cluster.workers])
    if min(counts) < 1:
        raise UserError(f"workers must be at least 1, got {min(counts)}; write 4, or several as 1,4,16")
    if max(counts) > RANKS_PER_DEVICE * cluster.workers:
        raise UserError(
            f"{max(counts)} workers are more than {RANKS_PER_DEVICE} for each of the {cluster.workers} "
            f"devices of {cluster.name}; give the cluster more hosts"
        )
    return counts

"""The recipe fields that stay fixed during a run, and the check that a checkpoint has the same fields.

Knows: the fields that affect no result, how recipes are compared. Does not know: files, networks.

Recipes are compared field by field in the current format. Neither a new field with a default nor a renamed
field makes an older run a different one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cotswold import recipe as recipes
from cotswold.checkpoint import Checkpoint
from cotswold.errors import CheckpointError, RecipeError, RunError
from cotswold.recipe import FORMAT, Recipe
from cotswold.recipe.schema import Cluster, DownpourTraining, Mesh

CHANGEABLE: Mapping[str, bool | set[str]] = {
    "mesh": set(Mesh.model_fields) - {"sync_batchnorm"},
    "cluster": set(Cluster.model_fields)
    - {"replay_run"},  # a checkpoint records the draws still to be repeated
    "price": True,
    "evaluate": True,
    "data": {"servers", "cache"},
    "training": {
        *("device", "threads", "checkpoint_minutes", "checkpoints_kept", "offload", "compile"),
        *("metrics", "loggers"),
        *(
            "max_iterations",
            "max_evaluations",
            "max_flops",
            "tolerance",
            "loss_tolerance",
            "convergence_patience",
        ),  # the end of a full-batch run
    },
}
"""Recipe fields that may change when a run is resumed, because no result depends on them."""
PLACES = ("data.source", "data.store", "data.test_source")
"""Fields that locate the samples. They may change if the samples stay the same; `stores.store_of` checks
that.
"""
_SHOWN = 3


def fixed_fields(recipe: Recipe) -> dict[str, Any]:
    """Return the recipe fields that stay fixed during a run."""
    values = recipe.model_dump(mode="json", exclude=CHANGEABLE)
    values["training"].pop("patience", None)  # it only decides the end of a run
    if isinstance(recipe.training, DownpourTraining):
        del values["training"]["epochs"]  # more epochs only continue; downpour has no schedule
    return values


def metadata(recipe: Recipe) -> dict[str, object]:
    """Return the recipe metadata of every checkpoint of a run, for `check_recipe`."""
    return {"format": FORMAT, "recipe": fixed_fields(recipe)}


def differences(old: Recipe, new: Recipe) -> str | None:
    """Return the fixed fields in which two recipes differ, as text; None if they match. `PLACES` may
    differ.
    """
    one, other = (dict(_fields(fixed_fields(each))) for each in (old, new))
    differing = [key for key in one | other if one.get(key) != other.get(key) and key not in PLACES]
    if not differing:
        return None
    shown = [f"{key} ({one.get(key)} there, {other.get(key)} here)" for key in differing[:_SHOWN]]
    more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return ", ".join(shown) + more


def check_recipe(checkpoint: Checkpoint, recipe: Recipe) -> None:
    """Raise RunError for a checkpoint of another recipe, FormatError for one of a newer version."""
    written = checkpoint.state.get("recipe")
    recipes.format_of(checkpoint.state, str(checkpoint.path))
    if not isinstance(written, dict):
        raise CheckpointError(f"{checkpoint.path} has no recipe; it was not written by a run")
    values = {**written, "format": checkpoint.state.get("format", 1)}
    try:
        differing = differences(recipes.from_values(values, f"the recipe in {checkpoint.path}"), recipe)
    except RecipeError as error:
        raise RunError(f"{error}; another version wrote the checkpoint") from error
    if differing:
        raise RunError(
            f"{checkpoint.path} was written with another recipe, which differs in {differing}; restore the "
            "run's recipe, or choose another directory"
        )


def lasting_overrides(recipe: Recipe, began: Recipe) -> dict[str, str]:
    """Return the recipe fields of a resumed run that hold from then on, as TOML values by name.

    They are the location of the samples, and the offload setting with its grid, because the run may not fit
    memory otherwise. ``began`` is the recipe at the run's beginning.
    """
    fields: dict[str, str] = {}
    offloaded, grid = recipe.offloaded, recipe.mesh.grid
    if offloaded != began.offloaded:
        fields["training.offload"] = "disk" if offloaded else "none"
        if offloaded and grid != began.mesh.grid:
            fields["mesh.grid"] = grid or "none"
    now, before = (dict(_fields(fixed_fields(each))) for each in (recipe, began))
    moved = {name: now[name] for name in PLACES if now.get(name) != before.get(name)}
    return {
        name: "" if value is None else json.dumps(value, ensure_ascii=False)
        for name, value in {**fields, **moved}.items()
    }


def _fields(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Yield each field of a recipe under its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _fields(inner, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            yield from _fields(inner, (*path, str(number)))
    else:
        yield ".".join(path), value

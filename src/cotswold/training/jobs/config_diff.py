"""What of a recipe a run keeps from its beginning to its end, and whether a checkpoint was written under it.

Knows: which fields no result depends on, how recipes are compared. Does not know: files, networks.

Recipes are compared field by field in the current format. Neither a new field with a default nor a renamed
field makes an older run another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cotswold import recipe as recipes
from cotswold.checkpoint import Checkpoint
from cotswold.errors import CheckpointError, RecipeError, RunError
from cotswold.recipe import FORMAT, Recipe
from cotswold.recipe.schema import Cluster, DownpourTraining

CHANGEABLE: Mapping[str, bool | set[str]] = {
    "mesh": True,
    "cluster": set(Cluster.model_fields) - {"replay"},  # a checkpoint has what is left to be drawn again
    "price": True,
    "evaluate": True,
    "data": {"servers", "cache"},
    "training": {
        *("device", "threads", "checkpoint_minutes", "checkpoints_kept", "offload"),
        *(
            "iterations",
            "evaluations",
            "flops",
            "tolerance",
            "stall_iterations",
        ),  # where a run over the whole set ends
    },
}
"""What of a recipe may be different when a run is resumed, since no result depends on it."""
PLACES = ("data.source", "data.store")
"""Fields that say where the samples are. They may change if the samples stay the same; `stores.store_of`
checks that."""
_SHOWN = 3


def lasting(recipe: Recipe) -> dict[str, Any]:
    """The fields of a recipe that a run keeps from its beginning to its end."""
    values = recipe.model_dump(mode="json", exclude=CHANGEABLE)
    values["training"].pop("patience", None)  # it decides where a run ends, and more lets it go on
    if isinstance(recipe.training, DownpourTraining):
        del values["training"]["epochs"]  # it goes on for more; there is no schedule
    return values


def metadata(recipe: Recipe) -> dict[str, object]:
    """What every checkpoint of a run says of its recipe, for `check_recipe`."""
    return {"format": FORMAT, "recipe": lasting(recipe)}


def differences(there: Recipe, here: Recipe) -> str | None:
    """Lasting fields in which two recipes differ, in words; None where they do not. `PLACES` may differ."""
    one, other = (dict(_fields(lasting(each))) for each in (there, here))
    differing = [key for key in one | other if one.get(key) != other.get(key) and key not in PLACES]
    if not differing:
        return None
    shown = [f"{key} ({one.get(key)} there, {other.get(key)} here)" for key in differing[:_SHOWN]]
    more = f" and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
    return ", ".join(shown) + more


def check_recipe(checkpoint: Checkpoint, recipe: Recipe) -> None:
    """Raise RunError if a checkpoint was written under another recipe, FormatError if by a newer version."""
    written = checkpoint.state.get("recipe")
    recipes.format_of(checkpoint.state, str(checkpoint.path))
    if not isinstance(written, dict):
        raise CheckpointError(f"{checkpoint.path} has no recipe; it was not written by a run")
    values = {**written, "format": checkpoint.state.get("format", 1)}
    try:
        differing = differences(recipes.from_values(values, f"the recipe in {checkpoint.path}"), recipe)
    except RecipeError as error:
        raise RunError(f"{error}; the checkpoint was written by another version") from error
    if differing:
        raise RunError(
            f"{checkpoint.path} was written under another recipe, which differs in {differing}; give the run "
            "its recipe back, or choose another directory"
        )


def remembered(recipe: Recipe, began: Recipe) -> dict[str, str]:
    """Fields of the recipe with which a run is resumed that hold from then on, as TOML values by name.

    These are: the place of the samples; where the filters are, since the run may not fit otherwise, and the
    grid that goes with it. ``began``: the recipe of the run's beginning.
    """
    fields: dict[str, str] = {}
    offloaded, grid = recipe.offloaded, recipe.mesh.grid
    if offloaded != began.offloaded:
        fields["training.offload"] = "disk" if offloaded else "none"
        if offloaded and grid != began.mesh.grid:
            fields["mesh.grid"] = grid or "none"
    now, before = (dict(_fields(lasting(each))) for each in (recipe, began))
    moved = {name: now[name] for name in PLACES if now.get(name) != before.get(name)}
    return {
        name: "" if value is None else json.dumps(value, ensure_ascii=False)
        for name, value in {**fields, **moved}.items()
    }


def _fields(value: object, path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    """Every field of a recipe under its dotted name."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _fields(inner, (*path, key))
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for number, inner in enumerate(value):
            yield from _fields(inner, (*path, str(number)))
    else:
        yield ".".join(path), value

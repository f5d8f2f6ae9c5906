"""Parts of an export: the trained network, inputs for it, and its description.

Knows: runs, checkpoints, the preparation of samples. Does not know: file formats.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from cotswold import __version__, training
from cotswold.api.export.portable import as_sequential, own_layers
from cotswold.api.export.public_recipe import precision_of, public_recipe
from cotswold.api.run import Run
from cotswold.errors import RunError, UserError

FORMAT = 1
"""The version of the description."""
KEY = "cotswold"
"""The name under which files keep the description."""
_BATCH = 2
"""Samples of an input: torch.export fixes a batch of 1."""

Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Subject:
    """A trained network on the CPU, in evaluation mode, with inputs of at least two samples."""

    network: nn.Module
    inputs: Inputs
    """Inputs of the network; empty if the file needs none and none were given."""
    description: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The description as JSON."""
        return json.dumps(self.description)

    @property
    def own_layers(self) -> list[str]:
        """The layers that only Cotswold has."""
        return own_layers(self.network)


def subject_of(run: Run, module: nn.Module | None, example: object, needs_inputs: bool) -> Subject:
    """Return what a run exports; raises UserError for wrong arguments, RunError without a checkpoint."""
    recipe = run.recipe
    about: dict[str, Any] = {
        "format": FORMAT,
        "version": __version__,
        "run": {"name": recipe.name, "identity": run.directory.identity},
        "strategy": recipe.training.strategy,
        "loss": recipe.loss if not recipe.network.stacks else None,
        "precision": precision_of(recipe),
        "preparation": None,
    }
    if recipe.network.module is not None:
        network = _module_of(run, module)
        if example is None and needs_inputs:
            raise UserError(
                "the shape of a module's inputs is not in the run; give an input of the module, a tensor "
                "or a tuple of tensors: export(path, module=..., example=inputs)"
            )
        inputs = _checked_inputs(example) if example is not None else ()
    else:
        if module is not None or example is not None:
            raise UserError(
                f"{run.path} trained a recipe, which has its own network; omit module and example"
            )
        load = training.trained_stacks if recipe.network.stacks else training.trained_layers
        trained = load(run.directory)
        network = trained.network
        if isinstance(network, training.LayerNetwork):
            network.precision = "32"
        shape = recipe.input
        random = torch.Generator().manual_seed(0)
        inputs = (torch.randn(_BATCH, shape.channels, shape.height, shape.width, generator=random),)
        about["run"]["step"] = trained.step
        about["preparation"] = trained.prepared.state()
        about["recipe"] = public_recipe(recipe)
    network = network.cpu().eval()
    about["network"] = repr(as_sequential(network))
    about["inputs"] = [{"shape": [None, *each.shape[1:]], "dtype": _dtype(each)} for each in inputs]
    return Subject(network, inputs, about)


def _module_of(run: Run, module: nn.Module | None) -> nn.Module:
    """Return the module of a run, filled; it is the caller's own."""
    import copy

    if module is None:
        try:
            return copy.deepcopy(run.network)
        except RunError as error:
            raise UserError(f"{error}, or give it here: export(path, module=..., example=...)") from error
    if isinstance(module, type) or not isinstance(module, nn.Module):
        raise UserError(f"module must be a torch.nn.Module like the trained one, got {module!r:.80}")
    return run.load(copy.deepcopy(module))


def _checked_inputs(example: object) -> Inputs:
    """Return inputs with at least two samples each."""
    given = example if isinstance(example, tuple | list) else (example,)
    if not given or not all(isinstance(each, Tensor) and each.dim() and len(each) for each in given):
        raise UserError(
            "example must be a tensor with the samples on its first axis, or a tuple of them; "
            f"got {example!r:.80}"
        )
    tensors = [each.detach().cpu() for each in given if isinstance(each, Tensor)]
    return tuple(torch.cat([each] * _BATCH) if len(each) < _BATCH else each for each in tensors)


def _dtype(values: Tensor) -> str:
    return str(values.dtype).removeprefix("torch.")

"""The state of an optimiser and its scheduler in checkpoints.

Knows: tensors of each parameter, settings of each group, how a scheduler's values become text. Does not know:
what optimisers compute, files.

Tensors are chunks named `optimizer.<parameter>.<key>`, or `momentum.<index>` for the recipe's SGD. All other
values are one JSON text.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from cotswold.checkpoint import Checkpoint, TensorChunk
from cotswold.errors import CheckpointError, MismatchError, UserError
from cotswold.geometry import Box
from cotswold.mesh.modules.parameters import dtensor_like, own_box
from cotswold.training.optimizer_trial import after_one_step
from cotswold.training.optimizers import kind_of

_PREFIX, _MOMENTUM = "optimizer.", "momentum."
TENSORS, SETTINGS = "optimizer_tensors", "optimizer_settings"
"""The keys of an optimiser's state in the strategy's state dict."""
_VALUES_MAX = 1 << 12
"""Largest number of values of a tensor among settings, such as a learning rate."""
_FIXED = ("initial_lr", "weight_decay")
"""Settings that schedulers leave as they are."""


class OptimizerState:
    """The live state of an optimiser, and of the scheduler of its learning rates.

    Args:
        optimizer: The optimiser.
        scheduler: Its scheduler, or None.
        network: The network, which gives names to the parameters.
        name: The name of the recipe's optimiser; None for a program's own.
    """

    def __init__(
        self, optimizer: Optimizer, scheduler: LRScheduler | None, network: nn.Module, name: str | None
    ) -> None:
        self._optimizer, self._scheduler = optimizer, scheduler
        self._kind = kind_of(optimizer) if name is None else name
        self._is_own = name is None
        self.warning = ""
        """The settings of a program's optimiser that the loaded ones replaced, as a sentence."""
        self._parameters = dict(network.named_parameters())
        self._names = {id(values): each for each, values in self._parameters.items()}
        trained = [each for each, values in self._parameters.items() if values.requires_grad]
        self._indices = {each: index for index, each in enumerate(trained)} if name == "sgd" else {}
        self._has_settings = name != "sgd" or scheduler is not None

    def chunks(self) -> Iterator[TensorChunk]:
        """Return the chunks of this rank: its parts, and whole tensors that all ranks have."""
        for name, value in self.tensors().items():
            if isinstance(value, DTensor):
                part, box, shape = value.to_local().detach(), own_box(value), tuple(value.shape)
                if box != Box.whole(shape):
                    if part.numel():
                        yield TensorChunk(name, part, box, shape)
                    continue
                value = part
            yield TensorChunk(name, value.detach())

    def load(self, checkpoint: Checkpoint) -> None:
        """Load the tensors from a checkpoint, which any number of ranks may have written.

        Raises:
            MismatchError: for the state of another optimiser or scheduler.
        """
        self._check_kinds(checkpoint)
        known = checkpoint.names
        for name, values in self._parameters.items():
            prefix = f"{_PREFIX}{name}."
            found = {
                each.removeprefix(prefix): each
                for each in known
                if each.startswith(prefix) and "." not in each.removeprefix(prefix)
            }
            momentum = f"{_MOMENTUM}{self._indices.get(name)}"
            if momentum in known:
                found["momentum_buffer"] = momentum
            if found or self._optimizer.state.get(values):
                self._optimizer.state[values] = {
                    key: self._read(checkpoint, each, values) for key, each in found.items()
                }

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors under their names in checkpoints."""
        found: dict[str, Tensor] = {}
        for name, key, value in self._entries():
            if isinstance(value, Tensor):
                index = self._indices.get(name)
                is_momentum = index is not None and key == "momentum_buffer"
                found[f"{_MOMENTUM}{index}" if is_momentum else f"{_PREFIX}{name}.{key}"] = value
        return found

    def settings(self) -> dict[str, str]:
        """Return the values that are not tensors, as one text; empty for the recipe's SGD and schedule."""
        if not self._has_settings:
            return {}
        groups = [
            {
                "names": [self._names[id(each)] for each in group["params"]],
                "values": _to_json(
                    {key: value for key, value in group.items() if key not in ("params", "param_names")},
                    "the settings of the optimiser",
                ),
            }
            for group in self._optimizer.param_groups
        ]
        values = [
            [name, key, _to_json(value, f"the state of the optimiser for {name}")]
            for name, key, value in self._entries()
            if not isinstance(value, Tensor)
        ]
        scheduler = None
        if self._scheduler is not None:
            state = self._scheduler.state_dict()
            scheduler = {
                "kind": kind_of(self._scheduler),
                "state": _to_json(state, f"the scheduler {type(self._scheduler).__name__}"),
            }
        kept = {"kind": self._kind, "groups": groups, "values": values, "scheduler": scheduler}
        return {SETTINGS: json.dumps(kept)}

    def check(self) -> None:
        """Raise UserError if the optimiser keeps state that a checkpoint cannot store.

        Before the first step, the state of a trial step on copies is checked.
        """
        self.settings()
        found = after_one_step(self._optimizer)
        if found is not None:
            trial, originals = found
            later = copy.copy(self)
            later._optimizer, later._scheduler = trial, None
            copies = {each: self._names[id(values)] for each, values in originals.items()}
            later._names = {**self._names, **copies}
            later.tensors()
            later.settings()

    def load_settings(self, state: Mapping[str, object]) -> None:
        """Restore what `settings` returned, after `load`."""
        if not self._has_settings:
            return
        kept = json.loads(str(state[SETTINGS]))
        self.warning = self._replaced(kept["groups"]) if self._is_own else ""
        for group, saved in zip(self._optimizer.param_groups, kept["groups"], strict=True):
            for key, value in _from_json(saved["values"]).items():
                if isinstance(group.get(key), Tensor) and isinstance(value, Tensor):
                    group[key].copy_(value)
                else:
                    group[key] = value
        for name, key, value in kept["values"]:
            self._optimizer.state[self._parameters[name]][key] = _from_json(value)
        if self._scheduler is not None:
            self._scheduler.load_state_dict(_from_json(kept["scheduler"]["state"]))

    def _replaced(self, groups: Sequence[Mapping[str, Any]]) -> str:
        """Return a sentence on the settings that differ from those in a checkpoint; empty without any.

        A scheduler changes settings as it goes, so with one only those that it leaves are compared.
        """
        found: dict[str, None] = {}
        for group, saved in zip(self._optimizer.param_groups, groups, strict=True):
            for key, value in _from_json(saved["values"]).items():
                is_fixed = self._scheduler is None or key in _FIXED
                if is_fixed and key in group and _to_json(group[key], key) != _to_json(value, key):
                    found[f"{key} {_plain(value)} (not {_plain(group[key])})"] = None
        if not found:
            return ""
        return (
            f"the optimizer {type(self._optimizer).__name__} continues with the settings of the checkpoint, "
            f"not with those given now: {', '.join(found)}"
        )

    def _entries(self) -> Iterator[tuple[str, str, object]]:
        """Yield name, key and value of everything that the optimiser keeps for its parameters."""
        for values, state in self._optimizer.state.items():
            if id(values) not in self._names:
                raise UserError(
                    f"{type(self._optimizer).__name__} keeps state under {values!r:.80}, which is not a "
                    "parameter of the module and which a checkpoint cannot store; use another optimizer"
                )
            for key, value in state.items():
                if not isinstance(key, str) or "." in key:
                    raise UserError(
                        f"{type(self._optimizer).__name__} keeps state under the key {key!r:.80}, which a "
                        "checkpoint cannot store; use an optimizer whose keys are texts without dots"
                    )
                yield self._names[id(values)], key, value

    def _check_kinds(self, checkpoint: Checkpoint) -> None:
        """Raise MismatchError unless the checkpoint has the state of this optimiser and scheduler."""
        strategy = checkpoint.state.get("strategy")
        text = strategy.get(SETTINGS) if isinstance(strategy, dict) else None
        there: dict[str, Any] = {"kind": "sgd", "scheduler": None}
        if isinstance(text, str):
            there = json.loads(text)
        scheduler = there["scheduler"]
        ours = "none" if self._scheduler is None else kind_of(self._scheduler)
        theirs = "none" if scheduler is None else scheduler["kind"]
        for what, one, other in (("optimizer", there["kind"], self._kind), ("scheduler", theirs, ours)):
            if one != other:
                raise MismatchError(
                    f"the run in {checkpoint.path.parent.parent} was trained with another {what} ({one} "
                    f"there, {other} here); give the same {what} again, or choose another directory"
                )
        if self._has_settings:
            here = [[self._names[id(p)] for p in group["params"]] for group in self._optimizer.param_groups]
            if here != [group["names"] for group in there["groups"]]:
                raise MismatchError(
                    f"the parameter groups of the optimizer differ from those of {checkpoint.path}; give the "
                    "same groups, with the same parameters in the same order"
                )

    def _read(self, checkpoint: Checkpoint, name: str, parameter: Tensor) -> Tensor:
        if checkpoint.shape(name) != tuple(parameter.shape):
            return checkpoint.read(name).to(self._scalar_device(parameter))
        if not isinstance(parameter, DTensor):
            # every stride of the parameter, as torch's zeros_like makes them
            value = torch.empty_like(parameter, dtype=checkpoint.dtype(name), requires_grad=False)
            checkpoint.read_into(name, value)
            return value
        part = torch.empty_like(parameter.to_local(), dtype=checkpoint.dtype(name), requires_grad=False)
        checkpoint.read_into(name, part, own_box(parameter))
        return dtensor_like(parameter, part)

    def _scalar_device(self, parameter: Tensor) -> torch.device:
        """The device of the count of steps and other small values; torch keeps them on the CPU by default."""
        for group in self._optimizer.param_groups:
            if any(each is parameter for each in group["params"]):
                on_device = group.get("capturable") or group.get("fused")
                return parameter.device if on_device else torch.device("cpu")
        return torch.device("cpu")


def _plain(value: object) -> object:
    return value.tolist() if isinstance(value, Tensor) else value


def _to_json(value: object, where: str) -> object:
    """Return a value of settings for JSON; raises UserError for a type that a checkpoint cannot store."""
    if isinstance(value, bool | int | float | str | None):
        return float(value) if isinstance(value, float) else value
    if isinstance(value, Tensor) and value.numel() <= _VALUES_MAX and not isinstance(value, DTensor):
        return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    if isinstance(value, list):
        return [_to_json(each, where) for each in value]
    if isinstance(value, tuple):
        return {"tuple": [_to_json(each, where) for each in value]}
    if isinstance(value, Mapping):
        kind = "counter" if isinstance(value, Counter) else "dict"
        return {kind: [[_to_json(each, where) for each in pair] for pair in value.items()]}
    raise UserError(
        f"{where} has a {type(value).__name__}, which a checkpoint cannot store; use one whose state is "
        "tensors, numbers and texts"
    )


def _from_json(value: object) -> Any:
    """Return the value that `_to_json` converted."""
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "tensor" in value:
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    if "tuple" in value:
        return tuple(_from_json(each) for each in value["tuple"])
    for name, kind in (("counter", Counter), ("dict", dict)):
        if name in value:
            return kind({_from_json(key): _from_json(each) for key, each in value[name]})
    raise CheckpointError(f"the checkpoint has unknown settings of the optimiser: {value!r:.80}")

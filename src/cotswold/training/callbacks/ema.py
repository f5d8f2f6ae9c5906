"""An exponential moving average of a network's parameters, which is validated and saved in their place.

Knows: the parameters of a module, their names in checkpoints, parts of them on a mesh. Does not know: when a
run validates or saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from cotswold.checkpoint import StateDict, StateValue, TensorPart
from cotswold.errors import UserError
from cotswold.mesh.modules.parameters import local_part
from cotswold.training.callbacks.base import Callback, CallbackContext

_NETWORK, _RAW = "network.", "raw."
"""The prefixes of names in checkpoints: of the network, and of the weights with which training resumes."""


class ModelEMA(Callback):
    """An exponential moving average of the trainable parameters.

    After each step the average moves towards the parameters, by ``average = decay * average + (1 - decay) *
    parameter``. Validation uses the average, and checkpoints hold it as the network, so `Run.load`,
    `Run.network`, `cotswold.evaluate` and `cotswold.predict` use it. Buffers, such as the running means of
    batch normalisation, are those of the module. Checkpoints hold the parameters too, and training resumes
    with them to the bit; the module of the program has these after training.

    Args:
        decay: The weight of the previous average, between 0 and 1.
        warmup: True to begin with a smaller weight, ``(1 + n) / (10 + n)`` after n steps, so that the average
            soon forgets the initial parameters.

    Raises:
        UserError: If ``decay`` is not between 0 and 1.
    """

    every_rank = True
    needs_module = True

    def __init__(self, decay: float = 0.999, *, warmup: bool = True) -> None:
        if isinstance(decay, bool) or not isinstance(decay, int | float) or not 0.0 <= decay < 1.0:
            raise UserError(f"decay={decay!r} of ModelEMA is not a number from 0 to below 1, such as 0.999")
        self.decay, self.warmup = float(decay), warmup
        self._updates = 0
        self._pairs: dict[str, tuple[nn.Parameter, Tensor]] = {}
        """The parameters with their averages, by name; tied parameters have several names."""

    def track(self, module: nn.Module, state: StateDict) -> None:
        """Start an average at the present parameters.

        Args:
            module: The module.
            state: The state of the strategy that trains it.

        Raises:
            UserError: If the state lacks the parameters, or the module has none to train.
        """
        averages: dict[int, Tensor] = {}
        self._pairs = {}
        for name, each in module.named_parameters(remove_duplicate=False):
            if not each.requires_grad or not each.is_floating_point():
                continue
            if _NETWORK + name not in state:
                raise UserError(
                    f"ModelEMA cannot average {name}, which the strategy's state_dict lacks under the name "
                    f"{_NETWORK}{name}; add it, or omit ModelEMA"
                )
            average = averages.setdefault(id(each), local_part(each.detach()).clone())
            self._pairs[name] = each, average
        if not self._pairs:
            raise UserError("ModelEMA needs trainable parameters, but the module has none; omit ModelEMA")

    @torch.no_grad()
    def on_step_end(self, context: CallbackContext) -> None:
        """Move the average towards the parameters.

        Args:
            context: The state of the run.
        """
        decay, self._updates = self.decay, self._updates + 1
        if self.warmup:
            decay = min(decay, (1 + self._updates) / (10 + self._updates))
        for parameter, average in self._unique_pairs():
            average.lerp_(local_part(parameter.detach()), 1.0 - decay)

    @contextmanager
    def exchanged(self) -> Iterator[None]:
        """Give the module the average in a `with` block, and its own parameters again at the end."""
        pairs = list(self._unique_pairs())
        kept = [local_part(parameter.detach()).clone() for parameter, _ in pairs]
        try:
            for parameter, average in pairs:
                local_part(parameter.detach()).copy_(average)
            yield
        finally:
            for (parameter, _), own in zip(pairs, kept, strict=True):
                local_part(parameter.detach()).copy_(own)

    def substitute(self, state: StateDict) -> dict[str, StateValue]:
        """Return a strategy's state with the average as the network, and with the parameters as raw weights.

        Args:
            state: The state.
        """
        found: dict[str, StateValue] = dict(state)
        for name, (_, average) in self._pairs.items():
            own = state[_NETWORK + name]
            found[_RAW + name] = own
            found[_NETWORK + name] = replace(own, tensor=average) if isinstance(own, TensorPart) else average
        return found

    def matches(self, raw: Iterable[str]) -> bool:
        """Return True if these raw weights are of the parameters that it averages.

        Args:
            raw: The names of raw weights in a checkpoint.
        """
        return {_RAW + name for name in self._pairs} == set(raw)

    def state_dict(self) -> Mapping[str, Any]:
        """Return the number of updates; the average itself is the network of a checkpoint."""
        return {"updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the number of updates.

        Args:
            state: The state.
        """
        self._updates = int(state["updates"])

    def _unique_pairs(self) -> Iterable[tuple[nn.Parameter, Tensor]]:
        return {id(pair[0]): pair for pair in self._pairs.values()}.values()


def average_of(callbacks: Iterable[Callback]) -> ModelEMA | None:
    """Return the `ModelEMA` among callbacks; raises UserError if there are several."""
    found = [each for each in callbacks if isinstance(each, ModelEMA)]
    if len(found) > 1:
        raise UserError(f"{len(found)} ModelEMA callbacks are given, but only one average can be saved")
    return found[0] if found else None


def network_name(raw: str) -> str:
    """Return the name of the network's tensor in a checkpoint, for the name of a raw weight."""
    return _NETWORK + raw.removeprefix(_RAW)


def raw_name(network: str) -> str:
    """Return the name of the raw weight, for the name of a tensor of the network."""
    return _RAW + network.removeprefix(_NETWORK)


def raw_weights(state: StateDict, names: Iterable[str]) -> dict[str, StateValue]:
    """Return the raw weights that a checkpoint with these names has, with the live tensors of ``state``."""
    raw = (
        name for name in names if name.startswith(_RAW) and name not in state and network_name(name) in state
    )
    return {name: state[network_name(name)] for name in raw}

"""The exchange of metrics' states between replicas, each of which validates a part of the samples.

Knows: states as JSON values. Does not know: metrics, how processes reach each other.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.host import Ranks, raise_on_all
from cotswold.training.metrics.metric_set import MetricSet

_PLAIN = (bool, int, float, str, type(None))


def merge_states(metrics: MetricSet, ranks: Ranks, members: Callable[[list[Any]], list[Any]]) -> None:
    """Replace the states of metrics by the union of all replicas' states.

    Args:
        metrics: The metrics, in the state of this replica.
        ranks: All ranks of the job, which call this together.
        members: Selects one rank of each replica from the values of all ranks.
    """
    own: object = None
    with raise_on_all(ranks, UserError):
        own = to_json(metrics.state())
    metrics.merge([from_json(each) for each in members(ranks.gather(own))])


def to_json(state: object) -> object:
    """Return a state for JSON: tensors, numbers, texts, and collections of them.

    Raises:
        UserError: For another type.
    """
    if isinstance(state, Tensor):
        values = state.detach().cpu().contiguous()
        data = values.reshape(-1).view(torch.uint8).numpy().tobytes() if values.numel() else b""
        kind = str(values.dtype).removeprefix("torch.")
        return {"tensor": b64encode(data).decode(), "dtype": kind, "shape": list(values.shape)}
    if isinstance(state, Mapping):
        return {"table": [[str(name), to_json(each)] for name, each in state.items()]}
    if isinstance(state, list | tuple):
        return [to_json(each) for each in state]
    if isinstance(state, _PLAIN):
        return state
    raise UserError(
        f"the state of a metric contains a {type(state).__name__}; return tensors and numbers by name"
    )


def from_json(value: Any) -> Any:
    """Return the state that `to_json` converted, with tensors on the CPU."""
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "table" in value:
        return {name: from_json(each) for name, each in value["table"]}
    dtype, data = getattr(torch, value["dtype"]), bytearray(b64decode(value["tensor"]))
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype, device="cpu")
    return flat.reshape(value["shape"])

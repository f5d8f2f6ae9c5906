"""Rules for attention: of windows on each rank alone, and of tokens that are divided over ranks.

Knows: each rank computes the rows of its queries, with the keys and values of all. Does not know: layers.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from cotswold.mesh.maps.array import DistributedArray, arranged, array_of, own_part
from cotswold.mesh.maps.distributed_tensor import DistributedTensor
from cotswold.mesh.maps.layout import Layout, plain
from cotswold.mesh.ranks.collectives import all_reduce_backward, connected_zeros
from cotswold.mesh.rules.arrays.operands import entered, local_operand, needs_whole, warn_operand
from cotswold.mesh.rules.arrays.shape import Distributed
from cotswold.mesh.rules.registry import array_rule

_MHA = inspect.signature(F.multi_head_attention_forward)


def _whole(value: Any, x: DistributedArray, whose: str) -> Tensor:
    """Return replicated keys or values for the queries of every rank."""
    if isinstance(value, Distributed):
        warn_operand(whose, value)
    if isinstance(value, DistributedTensor):
        value = value.full_tensor()
    return all_reduce_backward(value, x.mesh)


@array_rule("scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Attention ``(..., head, query, feature)``; keys and values of divided tokens are gathered."""
    needs_whole(not isinstance(query, Distributed) or dropout_p > 0 or query.dim() < 3)
    x = array_of(query)
    needs_whole(x.dim() - 1 in x.axes.cut_dims or isinstance(attn_mask, Distributed))
    cut_tokens = x.dim() - 2 in x.axes.cut_dims
    needs_whole(cut_tokens and (is_causal or len(x.axes.cut_dims) > 1))
    if cut_tokens:
        keys, values = (_whole(one, x, "scaled_dot_product_attention") for one in (key, value))
    else:
        cut = {at - x.dim() for at in x.axes.cut_dims}
        needs_whole(
            any(one.dim() != x.dim() or one.shape[at] != x.shape[at] for one in (key, value) for at in cut)
        )
        like = x.axes.with_dim(x.dim() - 2, plain(key.shape[-2]))
        keys, values = (local_operand(one, like, x.mesh) for one in (key, value))
    mask = attn_mask
    if attn_mask is not None:
        scores = x.axes.with_dim(x.dim() - 1, plain(key.shape[-2]))
        mask = own_part(attn_mask, scores, x.mesh)
    settings: dict[str, Any] = {"scale": scale, "enable_gqa": enable_gqa}
    if x.local.numel():
        local = F.scaled_dot_product_attention(x.local, keys, values, mask, 0.0, is_causal, **settings)
    else:
        learnt = [] if mask is None or not mask.requires_grad else [mask]
        local = connected_zeros((*x.local.shape[:-1], value.shape[-1]), x.local, keys, values, *learnt)
    return arranged(local, x.axes.with_dim(x.dim() - 1, plain(local.shape[-1])), x.mesh)


@array_rule("multi_head_attention_forward")
def multi_head_attention_forward(*args: Any, **kwargs: Any) -> Any:
    """Attention of ``nn.MultiheadAttention``, tokens first; keys of divided tokens are gathered."""
    told = _MHA.bind(*args, **kwargs)
    told.apply_defaults()
    given = told.arguments
    query = given["query"]
    needs_whole(not isinstance(query, Distributed) or (given["training"] and given["dropout_p"] > 0))
    x = array_of(query)
    needs_whole(
        x.dim() != 3 or given["is_causal"] or given["static_k"] is not None or given["static_v"] is not None
    )
    needs_whole(x.axes.cut_dims not in ({0}, {1}))
    others = {name: one for name, one in given.items() if name not in ("query", "key", "value")}
    needs_whole(any(isinstance(one, Distributed) for one in others.values()))
    tokens, batch, _ = x.axes.dims
    of_windows = x.axes.cut_dims == {1}
    if of_windows:
        needs_whole(given["attn_mask"] is not None or given["key_padding_mask"] is not None)
        needs_whole(any(given[name].shape[1] != x.shape[1] for name in ("key", "value")))
    keys: dict[int, Tensor] = {}
    for name in ("key", "value"):
        one = given[name]
        if one is query and of_windows:
            keys[id(one)] = x.local
        elif id(one) not in keys:
            like = Layout((plain(one.shape[0]), batch, plain(one.shape[2])), x.axes.grid)
            keys[id(one)] = local_operand(one, like, x.mesh) if of_windows else _whole(one, x, "attention")
    entering = {name: entered(x.mesh, one)[0] for name, one in others.items() if isinstance(one, Tensor)}
    mask, padding = entering.get("attn_mask"), entering.get("key_padding_mask")
    if mask is not None:
        entering["attn_mask"] = own_part(given["attn_mask"], Layout((tokens, ()), x.axes.grid), x.mesh)
    local = {**others, **entering, "key": keys[id(given["key"])], "value": keys[id(given["value"])]}
    if x.local.numel():
        out, weights = F.multi_head_attention_forward(query=x.local, **local)
    else:
        learnt = [one for one in entering.values() if one.requires_grad and one is not padding]
        sources = [x.local, *keys.values(), *learnt]
        out = connected_zeros(x.local.shape, *sources)
        weights = connected_zeros(_weights_shape(x, given), *sources) if given["need_weights"] else None
    found = arranged(out, x.axes, x.mesh)
    if weights is None:
        return found, None
    heads = [] if given["average_attn_weights"] else [plain(given["num_heads"])]
    dims = [batch, *heads, tokens, plain(_count_keys(given))]
    return found, arranged(weights, x.axes.with_dims(dims), x.mesh)


def _weights_shape(x: DistributedArray, given: Any) -> tuple[int, ...]:
    tokens, images, _ = x.local.shape
    heads = () if given["average_attn_weights"] else (given["num_heads"],)
    return (images, *heads, tokens, _count_keys(given))


def _count_keys(given: Any) -> int:
    more = (given["bias_k"] is not None) + bool(given["add_zero_attn"])
    count: int = given["key"].shape[0] + more
    return count

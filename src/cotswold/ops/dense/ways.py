"""Which way a dense network is computed: the fastest of those that there are here, measured once.

Knows: kernels of our own, libraries, what makes two networks alike. Does not know: how a way works.

A process measures a class of shapes on its first patterns. Values and gradients take the same way, so that
a line search compares what is rounded alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from cotswold.kernels.available import or_torch, usable
from cotswold.ops.dense import library
from cotswold.ops.dense.spec import DenseSpec

OWN, ONEDNN, TORCH = "kernels", "oneDNN", "torch.mm"
MEASURED_PATTERNS = 384
"""The most patterns of one measurement."""
ROUNDS = 3
WORTH_FLOPS = 1e8
"""Work below which nothing is measured: kernels of our own, where they are."""
MARGIN = 1.03
"""By how much a library must be faster."""
CHOSEN: dict[tuple[object, ...], str] = {}
"""What was measured in this process."""

Way = Callable[[DenseSpec, Tensor, Tensor, Tensor, Tensor | None], tuple[float, int]]


def ways(like: Tensor) -> dict[str, Way]:
    """The ways there are for parameters of this type, the preferred one first."""
    found: dict[str, Way] = {}
    if usable(like):
        from cotswold.ops.dense import own

        found[OWN] = own.add
    if like.dtype == torch.float32 and library.has_onednn():
        found[ONEDNN] = partial(library.add, library.OnednnProducts())
    found[TORCH] = partial(library.add, library.TorchProducts())
    return found


@torch.no_grad()
@or_torch
def dense_add(
    spec: DenseSpec,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    gradient: Tensor | None,
    deterministic: bool,
) -> tuple[float, int]:
    """The sum of losses and how many are right; adds the gradient. See `nn.DenseNetwork.add`."""
    known = ways(parameters)
    if deterministic:  # without kernels of our own, what is the same for every build of torch
        name = OWN if OWN in known else TORCH
    else:
        name = choose(known, spec, parameters, inputs, targets)
    return known[name](spec, parameters, inputs, targets, gradient)


@torch.no_grad()
@or_torch
def dense_outputs(spec: DenseSpec, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Outputs ``(outputs, patterns)``."""
    if usable(parameters):
        from cotswold.ops.dense import own

        return own.outputs(spec, parameters, inputs)
    return library.outputs(spec, parameters, inputs)


def choose(
    known: dict[str, Way], spec: DenseSpec, parameters: Tensor, inputs: Tensor, targets: Tensor
) -> str:
    """The fastest way for a network and about so many patterns; measured where no call has done so."""
    patterns = min(inputs.shape[1], MEASURED_PATTERNS)
    values = targets.dtype.is_floating_point
    key = spec, parameters.dtype, torch.get_num_threads(), values, patterns.bit_length(), tuple(known)
    if len(known) == 1 or 6 * parameters.numel() * patterns < WORTH_FLOPS:
        return next(iter(known))
    if key not in CHOSEN:
        operands = parameters, inputs[:, :patterns], targets[..., :patterns], torch.zeros_like(parameters)
        CHOSEN[key] = fastest(
            {name: partial(way, spec, *operands) for name, way in known.items()}, time.perf_counter
        )
    return CHOSEN[key]


def fastest(actions: dict[str, Callable[[], object]], clock: Callable[[], float]) -> str:
    """The action whose shortest time is the least; the first, where others gain little.

    Each is done once before, for it may compile; then in turns, so that a slow second slows all.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for round_number in range(ROUNDS + 1):
        for name, action in actions.items():
            begun = clock()
            action()
            if round_number:
                seconds[name].append(clock() - begun)
    first = next(iter(actions))
    best = min(actions, key=lambda name: min(seconds[name]))
    return best if min(seconds[best]) * MARGIN < min(seconds[first]) else first

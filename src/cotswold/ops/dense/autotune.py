"""Choice of the backend of a dense network: the fastest one available, measured once.

Knows: the backends, which networks share a choice, the cache of choices. Does not know: how a backend works.

A process measures a class of shapes on its first samples, unless another process did so within a day: a
worker that replaces a dead one has no time to measure. Losses and gradients use the same backend, so that a
line search compares values with the same rounding.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Container, Mapping
from functools import partial

import torch
from torch import Tensor

from cotswold.kernels.available import fallback_to_torch, has_cpu_kernel
from cotswold.kernels.compile import code_cache
from cotswold.ops.dense import torch_backend as library
from cotswold.ops.dense.spec import DenseSpec

try:  # load this module's kernels before processes fork
    from cotswold.kernels.machine.processor import this_processor
    from cotswold.ops.dense import compiled
except (ImportError, OSError):  # without llvmlite `has_cpu_kernel` is false
    compiled = this_processor = None  # type: ignore[assignment]  # a module and a function

COMPILED, ONEDNN, TORCH = "kernels", "oneDNN", "torch.mm"
MEASURED_SAMPLES = 384
"""Maximum samples of one measurement."""
ROUNDS = 3
WORTH_FLOPS = 1e8
"""Work below which nothing is measured: the library's kernels run, if available."""
MARGIN = 1.03
"""Factor by which a library must be faster."""
CHOICES: dict[tuple[object, ...], str] = {}
"""Choices measured in this process or read from the cache."""
CHOICE_SECONDS = 86400.0
"""Seconds until a choice expires: versions change, and the machine may have been busy."""

Backend = Callable[[DenseSpec, Tensor, Tensor, Tensor, Tensor | None], tuple[float, int]]


def backends(like: Tensor) -> dict[str, Backend]:
    """Return the backends for parameters of this dtype, the preferred one first."""
    found: dict[str, Backend] = {}
    if has_cpu_kernel(like):
        found[COMPILED] = compiled.add
    if like.dtype == torch.float32 and like.device.type == "cpu" and library.has_onednn():
        found[ONEDNN] = partial(library.add, library.OnednnProducts())
    found[TORCH] = partial(library.add, library.TorchProducts())
    return found


@torch.no_grad()
@fallback_to_torch
def dense_add(
    spec: DenseSpec,
    parameters: Tensor,
    inputs: Tensor,
    targets: Tensor,
    gradient: Tensor | None,
    deterministic: bool,
) -> tuple[float, int]:
    """Return losses and correct samples; add to the gradient. See `nn.DenseNetwork.add`."""
    known = backends(parameters)
    if deterministic:  # without the library's kernels: torch.mm, which every build of torch has
        name = COMPILED if COMPILED in known else TORCH
    else:
        name = choose(known, spec, parameters, inputs, targets)
    return known[name](spec, parameters, inputs, targets, gradient)


@torch.no_grad()
@fallback_to_torch
def dense_outputs(spec: DenseSpec, parameters: Tensor, inputs: Tensor) -> Tensor:
    """Return outputs ``(outputs, samples)``."""
    if has_cpu_kernel(parameters):
        return compiled.outputs(spec, parameters, inputs)
    return library.outputs(spec, parameters, inputs)


def choose(
    known: dict[str, Backend], spec: DenseSpec, parameters: Tensor, inputs: Tensor, targets: Tensor
) -> str:
    """Return the fastest backend for a network and a similar number of samples; measure if unknown."""
    samples = min(inputs.shape[1], MEASURED_SAMPLES)
    values = targets.dtype.is_floating_point
    key = spec, parameters.dtype, torch.get_num_threads(), values, samples.bit_length(), tuple(known)
    if len(known) == 1 or 6 * parameters.numel() * samples < WORTH_FLOPS:
        return next(iter(known))
    if key not in CHOICES:
        file = _file(key)
        chosen = _load_choice(file, known)
        if chosen is None:
            operands = parameters, inputs[:, :samples], targets[..., :samples], torch.zeros_like(parameters)
            actions = {name: partial(way, spec, *operands) for name, way in known.items()}
            chosen = choose_fastest(actions, time.perf_counter)
            code_cache.save(file, json.dumps({"way": chosen, "when": time.time()}).encode())
        CHOICES[key] = chosen
    return CHOICES[key]


def _file(key: tuple[object, ...]) -> str:
    """Cache file of a choice, for this processor and this version of torch."""
    processor = None if this_processor is None else this_processor()
    said = repr((key, processor, torch.__version__))
    return f"dense-{hashlib.sha256(said.encode()).hexdigest()[:16]}.json"


def _load_choice(file: str, known: Container[str]) -> str | None:
    content = code_cache.load(file)
    if content is None:
        return None
    try:
        told = json.loads(content)
        chosen, when = str(told["way"]), float(told["when"])
    except (ValueError, KeyError, TypeError):  # written by another version
        return None
    return chosen if chosen in known and 0 <= time.time() - when < CHOICE_SECONDS else None


def choose_fastest(actions: Mapping[str, Callable[[], object]], clock: Callable[[], float]) -> str:
    """Return the action with the least minimum time, or the first action if the gain is small.

    Each action runs once untimed, because it may compile. The timed runs alternate, so that a slow second
    affects all actions.
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

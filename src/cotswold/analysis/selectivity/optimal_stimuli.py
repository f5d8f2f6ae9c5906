"""Optimal stimulus of a neuron: the image with its largest response (Le et al. 2012, section 4.4).

Knows: gradient ascent on a sphere of images, several starts, many neurons at once. Does not know: stacks.

Every step rotates the image towards its gradient by an angle. A step that lowers the response is undone and
the angle halved, so the response never falls. A start is noise inside the neuron's receptive field, and zero
outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cotswold.analysis.selectivity.neurons import Position

ResponseFunction = Callable[[Tensor], Tensor]
"""Maps images ``(image, channel, y, x)`` to the responses ``(image, ...)`` of one layer, differentiably."""


@dataclass(frozen=True)
class Ascent:
    """Settings of the gradient ascent. ``angle`` is the first step, in radians."""

    steps: int = 40
    starts: int = 3
    angle: float = 0.8
    batch: int = 96
    """Images per forward and backward pass; a neuron takes ``starts`` of them."""


@dataclass(frozen=True)
class Stimuli:
    """The best images found, ``(neuron, channel, y, x)``, of root mean square 1, and their responses."""

    images: Tensor
    responses: Tensor
    is_even: bool
    """True if the response ignores the sign of an image; then the sign of a stimulus is meaningless."""


def optimal_stimuli(
    respond: ResponseFunction,
    shape: Sequence[int],
    neurons: Sequence[Position],
    *,
    starts: Tensor | None = None,
    ascent: Ascent | None = None,
    seed: int = 0,
) -> Stimuli:
    """Return the optimal image of each neuron, on the sphere of root mean square 1.

    A neuron that computes magnitudes cannot distinguish a patch from its negative; from noise, every patch
    gets a random sign.

    Args:
        respond: maps images (image, channel, y, x) to responses (image, ...) of a layer, differentiably.
        shape: shape of an image, (channel, y, x).
        neurons: positions of the neurons in the layer.
        starts: images to start from, (neuron, channel, y, x) (default: noise, several times).
        ascent: settings of the gradient ascent.
        seed: seed of the noise.

    Returns:
        The images, and the responses to them.
    """
    ascent = ascent or Ascent()
    if starts is not None:
        ascent = replace(ascent, starts=1)
    generator = torch.Generator().manual_seed(seed)
    each = max(1, ascent.batch // ascent.starts)
    images, responses = [], []
    for first in range(0, len(neurons), each):
        some = [position for position in neurons[first : first + each] for _ in range(ascent.starts)]
        if starts is None:
            start = torch.randn(len(some), *shape, generator=generator)
        else:
            start = starts[first : first + each].float().cpu()
        found, values = _ascend(respond, start, some, ascent)
        best = values.view(-1, ascent.starts).argmax(1) + torch.arange(0, len(some), ascent.starts)
        images.append(found[best])
        responses.append(values[best])
    return Stimuli(torch.cat(images), torch.cat(responses), _is_even(respond, shape, generator))


def _ascend(
    answer: ResponseFunction, x: Tensor, neurons: Sequence[Position], ascent: Ascent
) -> tuple[Tensor, Tensor]:
    radius = float(np.sqrt(x[0].numel()))
    _, gradient = _gradient(answer, _project_to_sphere(x, radius), neurons)
    x = _project_to_sphere(x * (gradient != 0), radius)
    values, gradient = _gradient(answer, x, neurons)
    angle = torch.full((len(x),), ascent.angle)
    for _ in range(ascent.steps):
        tangent = gradient - x * (_dot(gradient, x) / radius**2)[:, None, None, None]
        length = _dot(tangent, tangent).sqrt().clamp_min(1e-30)
        turned = x * angle.cos()[:, None, None, None]
        turned += tangent * (radius * angle.sin() / length)[:, None, None, None]
        turned = _project_to_sphere(turned, radius)
        tried, slope = _gradient(answer, turned, neurons)
        better = tried > values
        x = torch.where(better[:, None, None, None], turned, x)
        gradient = torch.where(better[:, None, None, None], slope, gradient)
        values = torch.where(better, tried, values)
        angle = torch.where(better, angle * 1.1, angle * 0.5).clamp_max(ascent.angle)
    return x, values


def _gradient(answer: ResponseFunction, x: Tensor, neurons: Sequence[Position]) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        responses = answer(x)
        places = [torch.arange(len(neurons)), *torch.tensor(neurons).T]
        chosen = responses[tuple(index.to(responses.device) for index in places)]
        (gradient,) = torch.autograd.grad(chosen.sum(), x)
    return chosen.detach().float().cpu(), gradient.detach()


def _project_to_sphere(x: Tensor, radius: float) -> Tensor:
    return x * (radius / _dot(x, x).sqrt().clamp_min(1e-30))[:, None, None, None]


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).flatten(1).sum(1)


def _is_even(answer: ResponseFunction, shape: Sequence[int], generator: torch.Generator) -> bool:
    x = torch.randn(2, *shape, generator=generator)
    with torch.no_grad():
        here, there = answer(x), answer(-x)
    return bool(torch.allclose(here, there, rtol=1e-3, atol=1e-5 * float(here.abs().max())))


def correlations(stimuli: Stimuli, image: Tensor) -> NDArray[np.float64]:
    """Return each stimulus's correlation with an image (channel, y, x); absolute if signs are ignored."""
    wanted = image.flatten().double() - image.double().mean()
    found = stimuli.images.flatten(1).double().cpu()
    found = found - found.mean(1, keepdim=True)
    scale = (found.norm(dim=1) * wanted.norm()).clamp_min(1e-30)
    values: NDArray[np.float64] = ((found @ wanted) / scale).numpy()
    return np.abs(values) if stimuli.is_even else values


def percentile(value: float, among: NDArray[np.float64]) -> float:
    """Return the percentage of ``among`` below ``value``."""
    return 100.0 * float((among < value).mean())

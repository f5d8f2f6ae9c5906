"""Compare the convolutions of shipped recipes with torch's, layer by layer and as a whole step.

    python benchmarks/convolutions.py [--rounds 30] [--threads 1 2] [--recipe NAME] [--out benchmarks/results]

Torch computes the same network in its own order of memory (nchw) and in channels_last. A layer is timed
forward and backward, with the gradient of its input unless it is the first. A step is loss, gradients and an
update by SGD with momentum. All are timed in turn, round after round. Prints medians of milliseconds, and the
time of ours compared with the faster of torch's, round by round. Writes convolutions.json.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from cotswold import keep_freed_memory, recipe
from cotswold.bench.measure import Spread, document, interleaved, ratios
from cotswold.nn import BatchNorm2d, Conv2d, Dropout, Flatten, Linear, MaxPool2d
from cotswold.ops import images_last
from cotswold.training.models import build_layers
from lib.command import command

RECIPES = ("adam-mnist", "adam-mnist-augmented", "adam-cifar10", "cifar10")
OURS = "cotswold"
CLASSES = 10
_TORCH: dict[type[nn.Module], type[nn.Module]] = {
    Dropout: nn.Dropout,
    BatchNorm2d: nn.BatchNorm2d,
    Conv2d: nn.Conv2d,
    Flatten: nn.Flatten,
    Linear: nn.Linear,
    MaxPool2d: nn.MaxPool2d,
}
Action = Callable[[], object]


def network_of(name: str) -> tuple[nn.Sequential, Tensor]:
    """Return the layers of a shipped recipe, and a batch of random images."""
    os.environ.setdefault("COTSWOLD_DATA", ".")  # no data is read
    found = recipe.load(name)
    shape = found.input
    torch.manual_seed(0)
    images = torch.randn(found.training.batch_size, shape.channels, shape.height, shape.width)
    return build_layers(found, CLASSES, None).layers, images


def by_torch(module: nn.Module) -> nn.Module:
    """Return a copy of a module with torch's own layers."""
    found = copy.deepcopy(module)
    for part in found.modules():
        part.__class__ = _TORCH.get(type(part), type(part))
    return found


def in_channels_last(module: nn.Module) -> nn.Module:
    """Return the module with its filters in torch's other order."""
    found: nn.Module = module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch omits it
    return found


def steps(network: nn.Module, images: Tensor) -> dict[str, Action]:
    """Return a training step of ours and of each of torch's, by name."""
    classes = torch.randint(CLASSES, (len(images),))

    def step(network: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.cross_entropy(network(images), classes)
        loss.backward()  # type: ignore[no-untyped-call]  # untyped
        optimizer.step()

    last = torch.channels_last
    held = {
        OURS: (copy.deepcopy(network), images),
        "nchw": (by_torch(network), images),
        "channels_last": (in_channels_last(by_torch(network)), images.to(memory_format=last)),
    }
    return {
        name: partial(step, each, torch.optim.SGD(each.parameters(), lr=0.01, momentum=0.9), x)
        for name, (each, x) in held.items()
    }


def layers(network: nn.Sequential, images: Tensor) -> dict[str, tuple[nn.Module, Tensor]]:
    """Return convolutions and poolings by name, each with an input as the network computes it."""
    found: dict[str, tuple[nn.Module, Tensor]] = {}
    x = images
    with torch.no_grad():
        for number, layer in enumerate(network):
            if isinstance(layer, Conv2d | MaxPool2d):
                found[f"{number} {layer}"] = layer, x
            x = layer(x)
    return found


def passes(layer: nn.Module, x: Tensor, is_first: bool) -> dict[str, Action]:
    """Return forward and backward of a layer, of ours and of each of torch's, by name."""

    def run(layer: nn.Module, x: Tensor, slopes: Tensor) -> None:
        torch.autograd.grad(layer(x), [x, *layer.parameters()][is_first:], slopes)

    last = torch.channels_last
    theirs, first = by_torch(layer), x.contiguous()
    held = {
        OURS: (layer, x if is_first else images_last(x)),
        "nchw": (theirs, first),
        "channels_last": (in_channels_last(by_torch(layer)), first.to(memory_format=last)),
    }
    found: dict[str, Action] = {}
    for name, (each, maps) in held.items():
        maps = maps.detach().requires_grad_(not is_first)
        with torch.no_grad():
            slopes = torch.randn_like(each(maps))
        found[name] = partial(run, each, maps, slopes)
    return found


def row_of(name: str, what: str, threads: int, actions: dict[str, Action], rounds: int) -> dict[str, Any]:
    """Measure the actions; return milliseconds of each, and ours compared with the faster of torch's."""
    seconds = interleaved(actions, rounds)
    best = min((key for key in seconds if key != OURS), key=lambda key: median(seconds[key]))
    return {
        "recipe": name,
        "what": what,
        "threads": threads,
        "milliseconds": {
            key: Spread.from_samples([1e3 * one for one in each]).as_dict() for key, each in seconds.items()
        },
        "best": best,
        "share": ratios(seconds[OURS], seconds[best]).as_dict(),
    }


def measured(name: str, threads: int, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of a recipe: its layers, then its step."""
    torch.set_num_threads(threads)
    network, images = network_of(name)
    rows = [
        row_of(name, what, threads, passes(layer, x, what.startswith("0 ")), rounds)
        for what, (layer, x) in layers(network, images).items()
    ]
    return [*rows, row_of(name, "step", threads, steps(network, images), rounds)]


def line_of(row: dict[str, Any]) -> str:
    """Return a row as a line of the table."""
    times = "".join(f"{each['median']:15.3f}" for each in row["milliseconds"].values())
    return f"{row['recipe']:22}{row['threads']:3}{times}{row['share']['median']:8.2f}  {row['what']}"


def main() -> None:
    """Measure, print a table, keep the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--recipe", action="append", choices=RECIPES, help="may be given again [all]")
    parser.add_argument("--out", type=Path, help="directory for convolutions.json")
    given = parser.parse_args()
    keep_freed_memory()  # as training does, for both
    print(f"{'recipe':22}{'thr':>3}{OURS:>15}{'nchw':>15}{'channels_last':>15}{'share':>8}")
    rows = []
    for name in given.recipe or RECIPES:
        for threads in given.threads:
            for row in measured(name, threads, given.rounds):
                print(line_of(row), flush=True)
                rows.append(row)
    if given.out is not None:
        kept = document("convolutions", command(), rows=rows)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "convolutions.json").write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""Short training runs on a device, each compared with the same run on the CPU.

Knows: one small network and its data, settings of `cotswold.train`. Does not know: kernels, tables.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import cotswold
from cotswold.bench.measure import Document, rounded
from cotswold.nn import LocallyConnected2d

SAMPLES, CLASSES, SIZE = 512, 5, 12
LOSS_TOLERANCE = {"32": 2e-3, "bf16-mixed": 0.05, "16-mixed": 0.05}
"""Relative difference of the losses."""
SETTINGS: Mapping[str, Mapping[str, object]] = {
    "adamw": {"optimizer": "adamw"},
    "adamw, bf16-mixed": {"optimizer": "adamw", "precision": "bf16-mixed"},
    "adamw, 16-mixed, clipped": {"optimizer": "adamw", "precision": "16-mixed", "clip_norm": 1.0},
    "sgd, accumulate 2": {"optimizer": "sgd", "accumulate": 2},
    "adamw, compiled": {"optimizer": "adamw", "compile": True},
}


def _data() -> TensorDataset:
    source = torch.Generator().manual_seed(5)
    labels = torch.randint(CLASSES, (SAMPLES,), generator=source)
    means = torch.randn(CLASSES, 3, SIZE, SIZE, generator=source)
    return TensorDataset(means[labels] + torch.randn(SAMPLES, 3, SIZE, SIZE, generator=source), labels)


def _network() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(
        LocallyConnected2d(3, 8, SIZE, 3),
        nn.ReLU(),
        nn.Conv2d(8, 8, 3),
        nn.GroupNorm(2, 8),
        nn.ReLU(),
        nn.Flatten(),
        nn.LazyLinear(CLASSES),
    )


def _run(folder: Path, device: str, settings: Mapping[str, object]) -> tuple[float, float, str]:
    """Return the final loss over all samples, the seconds, and the device of the trained parameters."""
    data, module = _data(), _network()
    module(data.tensors[0][:2])  # the lazy layer
    began = time.perf_counter()
    words: dict[str, Any] = {"epochs": 3, "batch_size": 64, **settings}
    cotswold.train(
        module,
        data,
        loss="cross_entropy",
        directory=folder,
        validation=0.25,
        device=device,
        progress=False,
        **words,
    )
    taken = time.perf_counter() - began
    place = str(next(module.parameters()).device)
    samples, labels = data.tensors
    with torch.no_grad():
        loss = nn.functional.cross_entropy(module.cpu()(samples), labels)
    return float(loss), taken, place


def _plain(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings in full precision, not compiled."""
    return {name: value for name, value in settings.items() if name not in ("precision", "compile")}


def runs(folder: Path, device: torch.device) -> Iterator[Document]:
    """Yield the loss of a run on the device and of the same run on the CPU, for each of `SETTINGS`."""
    for number, (name, settings) in enumerate(SETTINGS.items()):
        row: Document = {"settings": name}
        try:
            found, taken, place = _run(folder / f"{number}-device", str(device), settings)
            wanted, _, _ = _run(folder / f"{number}-cpu", "cpu", _plain(settings))
            tolerance = LOSS_TOLERANCE[str(settings.get("precision", "32"))]
            near = abs(found - wanted) <= tolerance * max(abs(wanted), 0.1)
            yield {
                **row,
                "loss": rounded(found),
                "loss_on_the_cpu": rounded(wanted),
                "seconds": rounded(taken),
                "parameters_on": place,
                "is_right": near,
            }
        except Exception as failure:  # a refusal or a compiler's error is a result here
            yield {**row, "failure": f"{type(failure).__name__}: {failure}"[:600], "is_right": False}

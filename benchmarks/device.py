"""Everything that needs a CUDA device, in one command: tests, errors, ceilings, rates, short runs.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import cast

import torch

from cotswold.bench.measure import Document, document
from cotswold.cli.support.tables import table, write_result
from cotswold.errors import UserError
from lib.command import Json, command, main
from lib.device import products, training

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/kernels/test_cuda.py",
    "tests/training/async_sgd/test_downpour_devices.py",
    "tests/training/async_sgd/test_replica_pushes.py",
    "tests/replicas/test_device_vectors.py",
)


def device(
    *,
    device: str = "cuda:0",
    minutes: float = 7.0,
    part: list[str] | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure and test everything that needs a CUDA device; each row is printed as soon as it is known.

    With `--device cpu` it runs tiny layers, to see that the command works.

    Examples:
        python benchmarks/device.py
        python benchmarks/device.py --part errors --part runs
        python benchmarks/device.py --device cpu

    Parameters
    ----------
    device
        Device to use.
    minutes
        Time limit. A part that has not begun by then is left out and named.
    part
        Parts: tests, errors, ceilings, rates, steps, layer, runs, demo [all].
    out
        Directory for device.json.
    json_
        Print JSON.
    """
    place = torch.device(device)
    if place.type == "cuda" and not torch.cuda.is_available():
        raise UserError("no CUDA device was found; use --device cpu for a trial of this command")
    layers = products.LAYERS if place.type == "cuda" else products.TINY
    began, content = time.monotonic(), cast("dict[str, object]", {})
    if place.type == "cuda":
        content["device"] = torch.cuda.get_device_name(place)
    with tempfile.TemporaryDirectory() as folder, products.few_tiles():
        parts: dict[str, Callable[[], Iterable[Document]]] = {
            "tests": lambda: _tests(place),
            "errors": lambda: products.errors(place),
            "runs": lambda: training.runs(Path(folder), place),
            "demo": lambda: _demo(Path(folder), place),
            "ceilings": lambda: products.ceilings(place, 8192 if place.type == "cuda" else 256),
            "rates": lambda: products.rates(place, layers),
            "steps": lambda: products.steps(place, layers),
            "layer": lambda: products.own_layer(place),
        }
        unknown = set(part or ()) - set(parts)
        if unknown:
            raise UserError(f"unknown part {sorted(unknown)[0]!r}; use one of {', '.join(parts)}")
        for name, rows in parts.items():
            if part and name not in part:
                continue
            content[name] = _rows(name, rows(), lambda: time.monotonic() - began > 60 * minutes, began)
    write_result(document("device", command(), **content), "device", out, json_)
    if not json_:
        for name, found in content.items():
            if isinstance(found, list):
                table(name, [_flat(row) for row in found])


def _rows(name: str, rows: Iterable[Document], is_over: Callable[[], bool], began: float) -> list[Document]:
    """Print and return rows until the time is over."""
    found: list[Document] = []
    for row in rows if not is_over() else ():
        print(f"[{time.monotonic() - began:5.0f} s] {name}: {_flat(row)}", file=sys.stderr, flush=True)
        found.append(row)
        if is_over():
            break
    if is_over():
        print(f"{name}: out of time after {len(found)} rows", file=sys.stderr, flush=True)
    return found


def _flat(row: Mapping[str, object]) -> Document:
    """A row whose spreads are replaced by their medians."""
    return {
        name: cast("Mapping[str, object]", each)["median"] if isinstance(each, Mapping) else each
        for name, each in row.items()
    }


def _tests(place: torch.device) -> Iterator[Document]:
    """Run the tests that need a device, several at a time, as their compilers take most of the time."""
    workers = str(min(8, os.cpu_count() or 1))
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, "-m", "cuda"]
    done = subprocess.run([*words, *TESTS], cwd=ROOT, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    for line in lines:
        if line.startswith(("FAILED", "ERROR", "E  ")):
            yield {"failure": line[:300]}
    yield {"exit": done.returncode, "summary": lines[-1] if lines else done.stderr[-300:]}


def _demo(folder: Path, place: torch.device) -> Iterator[Document]:
    """Train an epoch of the demo recipe on the device, and evaluate it."""
    words = [sys.executable, "-m", "cotswold"]
    run = folder / "demo"
    began = time.monotonic()
    settings = ["--set", f"training.device={place}", "--set", "training.epochs=1"]
    stores = ["--stores", str(folder / "stores")]
    for arguments in (["train", "demo", "--run", str(run), *stores, *settings], ["evaluate", str(run)]):
        done = subprocess.run([*words, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        yield {
            "command": arguments[0],
            "exit": done.returncode,
            "seconds": round(time.monotonic() - began, 1),
            "last_line": last[0][:200] if last else "",
        }


if __name__ == "__main__":
    main(device)

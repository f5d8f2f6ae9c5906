"""Everything that needs a CUDA device, in one command: peak rates, tests, errors, rates, short runs.

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
from lib.device import products, training, updates

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/kernels/test_cuda.py",
    "tests/kernels/test_cuda_update.py",
    "tests/ops/test_bands.py",
    "tests/training/async_sgd/test_downpour_devices.py",
    "tests/training/async_sgd/test_replica_pushes.py",
    "tests/replicas/test_device_vectors.py",
)


TESTS_SECONDS, DEMO_SECONDS, LEAST_DEMO_SECONDS = 100.0, 120.0, 30.0


def device(
    *,
    device: str = "cuda:0",
    minutes: float = 4.0,
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
        Parts: ceilings, tests, errors, updates, steps, rates, runs, layer, demo [all, in this order].
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
    with tempfile.TemporaryDirectory() as folder, products.only_tiles(products.FEW_TILES):
        parts: dict[str, Callable[[], Iterable[Document]]] = {
            "ceilings": lambda: products.ceilings(place, 8192 if place.type == "cuda" else 256),
            "tests": lambda: _tests(place),
            "errors": lambda: products.errors(place),
            "updates": lambda: updates.updates(place, layers),
            "steps": lambda: updates.steps(place, layers),
            "rates": lambda: products.rates(place, layers),
            "runs": lambda: training.runs(Path(folder), place),
            "layer": lambda: products.own_layer(place),
            "demo": lambda: _demo(Path(folder), place, began + 60 * minutes - time.monotonic()),
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
    workers = str(min(12, os.cpu_count() or 1))
    # pytest-benchmark warns under xdist, and warnings are errors
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:benchmark",
        "-n",
        workers,
        "-m",
        "cuda",
    ]
    code, lines = _finished([*words, *TESTS], TESTS_SECONDS)
    for line in lines:
        if line.startswith(("FAILED", "ERROR", "E  ")):
            yield {"failure": line[:300]}
    yield {"exit": code, "summary": lines[-1][:300] if lines else ""}


def _finished(words: list[str], seconds: float) -> tuple[int, list[str]]:
    """Run Python with these words; return its exit code and its lines, with 124 if the time was over."""
    try:
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as over:
        text = over.stdout.decode(errors="replace") if isinstance(over.stdout, bytes) else over.stdout or ""
        return 124, text.strip().splitlines()
    return done.returncode, done.stdout.strip().splitlines()


def _demo(folder: Path, place: torch.device, left: float) -> Iterator[Document]:
    """Train an epoch of the demo recipe on the device, and evaluate it, in the seconds that are left."""
    run = folder / "demo"
    began = time.monotonic()
    settings = ["--set", f"training.device={place}", "--set", "training.epochs=1"]
    stores = ["--stores", str(folder / "stores")]
    for arguments in (["train", "demo", "--run", str(run), *stores, *settings], ["evaluate", str(run)]):
        limit = min(DEMO_SECONDS, max(LEAST_DEMO_SECONDS, left)) - (time.monotonic() - began)
        code, lines = _finished(["-m", "cotswold", *arguments], max(1.0, limit))
        shown = lines[-1:] if code == 0 else lines[-3:]
        yield {
            "command": arguments[0],
            "exit": code,
            "seconds": round(time.monotonic() - began, 1),
            "last_lines": " | ".join(line[:200] for line in shown),
        }
        if code:
            return


if __name__ == "__main__":
    main(device)

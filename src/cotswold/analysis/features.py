"""Responses of a layer in a file, for people who want to go on with them.

Knows: .npy written row by row and .npz, rows in the order of the pictures, names beside them. Does not know:
which layer, which pictures.
"""

from __future__ import annotations

import csv
import os
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from cotswold.errors import MachineError, SourceError, UserError
from cotswold.files.durable import PARTIAL, disk_errors

Named = tuple[Tensor, Sequence[str], Sequence[int]]
"""A batch: pictures ``(image, channel, y, x)``, what each is called, its label (-1 for none)."""


def write_features(
    respond: Callable[[Tensor], Tensor],
    batches: Iterable[Named],
    out: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, ...]:
    """Write responses ``(image, ...)``, float32, to ``out``; returns their shape.

    Memory is that of one batch and of all names. ``out`` ends in .npy, and names and labels go to a .csv
    beside it, or in .npz, with arrays ``features``, ``names`` and ``labels``. Raises UserError for another
    ending or a file that exists, SourceError where there is no picture, DiskFullError; nothing is left behind
    then.
    """
    if out.suffix not in (".npy", ".npz"):
        raise UserError(f"{out} ends neither in .npy nor in .npz; choose one of them")
    table = out.with_suffix(".csv")
    for path in (out, table) if out.suffix == ".npy" else (out,):
        if path.exists():
            raise UserError(f"{path} exists already; choose another name, or delete it")
    beside = [out.with_name(f"{out.name}.{os.getpid()}{kind}{PARTIAL}") for kind in ("", ".zip", ".csv")]
    rows, packed, listed = beside
    names: list[str] = []
    labels: list[int] = []
    try:
        with disk_errors(out, MachineError):
            with rows.open("w+b") as file:
                shape = _write_rows(file, respond, batches, names, labels, progress)
            if out.suffix == ".npz":
                _pack(rows, packed, names, labels)
                packed.rename(out)
            else:
                with listed.open("x", newline="", encoding="utf-8", errors="surrogateescape") as text:
                    writer = csv.writer(text)
                    writer.writerow(("row", "name", "label"))
                    writer.writerows(zip(range(len(names)), names, labels, strict=True))
                listed.rename(table)
                rows.rename(out)
    finally:
        for path in beside:
            path.unlink(missing_ok=True)
    return shape


def _write_rows(
    file: BinaryIO,
    respond: Callable[[Tensor], Tensor],
    batches: Iterable[Named],
    names: list[str],
    labels: list[int],
    progress: Callable[[int], None] | None,
) -> tuple[int, ...]:
    each: tuple[int, ...] | None = None
    for pictures, called, given in batches:
        with torch.no_grad():
            responses = respond(pictures).float().cpu().numpy()
        if each is None:
            each = responses.shape[1:]
            _write_header(file, (0, *each))
        file.write(np.ascontiguousarray(responses).data)
        names += called
        labels += given
        if progress is not None:
            progress(len(names))
    if each is None:
        raise SourceError("there is no picture to write features of; name a source with pictures")
    shape = (len(names), *each)
    file.seek(0)
    _write_header(file, shape)
    return shape


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """NumPy leaves room for the number of rows to grow, so the header has one length whatever the number."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _pack(rows: Path, packed: Path, names: Sequence[str], labels: Sequence[int]) -> None:
    with zipfile.ZipFile(packed, "x", allowZip64=True) as archive:
        archive.write(rows, "features.npy")
        for name, values in (("names.npy", np.array(names)), ("labels.npy", np.array(labels, np.int64))):
            with archive.open(name, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)

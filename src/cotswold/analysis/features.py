"""Write the responses of a layer to a file.

Knows: .npy written row by row and .npz, rows in the order of the images, names and labels. Does not know:
layers, sources.
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

NamedBatch = tuple[Tensor, Sequence[str], Sequence[int]]
"""A batch: images ``(image, channel, y, x)``, their names, their labels (-1 for none)."""


def write_features(
    respond: Callable[[Tensor], Tensor],
    batches: Iterable[NamedBatch],
    out: Path,
    *,
    progress: Callable[[int], None] | None = None,
) -> tuple[int, ...]:
    """Write responses to a file, with names and labels.

    Memory holds one batch, and all names.

    Args:
        respond: maps images (image, channel, y, x) to responses (image, ...).
        batches: images with their names and labels (-1 for none).
        out: the file. `.npy` holds float32 responses, and a `.csv` file of the same stem names and labels;
            `.npz` holds arrays ``features``, ``names`` and ``labels``.
        progress: called with the number of images done.

    Returns:
        Shape of the responses, (image, ...).

    Raises:
        UserError: if `out` has another ending, or exists.
        SourceError: if there are no images.
        DiskFullError: if the disk is full. After an error no file is left.
    """
    if out.suffix not in (".npy", ".npz"):
        raise UserError(f"{out} must end in .npy or .npz")
    table = out.with_suffix(".csv")
    for path in (out, table) if out.suffix == ".npy" else (out,):
        if path.exists():
            raise UserError(f"{path} exists already; give another name, or delete it")
    partial_files = [
        out.with_name(f"{out.name}.{os.getpid()}{kind}{PARTIAL}") for kind in ("", ".zip", ".csv")
    ]
    rows, packed, listed = partial_files
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
        for path in partial_files:
            path.unlink(missing_ok=True)
    return shape


def _write_rows(
    file: BinaryIO,
    respond: Callable[[Tensor], Tensor],
    batches: Iterable[NamedBatch],
    names: list[str],
    labels: list[int],
    progress: Callable[[int], None] | None,
) -> tuple[int, ...]:
    each: tuple[int, ...] | None = None
    for images, called, given in batches:
        with torch.no_grad():
            responses = respond(images).float().cpu().numpy()
        if each is None:
            each = responses.shape[1:]
            _write_header(file, (0, *each))
        file.write(np.ascontiguousarray(responses).data)
        names += called
        labels += given
        if progress is not None:
            progress(len(names))
    if each is None:
        raise SourceError("the source has no images; features need at least one")
    shape = (len(names), *each)
    file.seek(0)
    _write_header(file, shape)
    return shape


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    """Write the header of an array; NumPy pads it to a length that does not depend on the number of rows."""
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)


def _pack(rows: Path, packed: Path, names: Sequence[str], labels: Sequence[int]) -> None:
    with zipfile.ZipFile(packed, "x", allowZip64=True) as archive:
        archive.write(rows, "features.npy")
        for name, values in (("names.npy", np.array(names)), ("labels.npy", np.array(labels, np.int64))):
            with archive.open(name, "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, values, allow_pickle=False)

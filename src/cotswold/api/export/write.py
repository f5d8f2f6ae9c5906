"""Export of a run's network to a file for other programs.

Knows: the format of each suffix, when a file appears. Does not know: how a format is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from cotswold.api.arguments import check_path
from cotswold.api.export.public_recipe import precision_note
from cotswold.errors import UserError

if TYPE_CHECKING:
    from torch import nn

    from cotswold.api.export.subject import Subject
    from cotswold.api.run import Run


@dataclass(frozen=True)
class ExportedFile:
    """A file that `Run.export` wrote.

    Args:
        path: The file.
        format: `torch.export`, `state_dict`, `ONNX` or `safetensors`.
        bytes: Size of the file.
        difference: Largest difference between the outputs of the file and of the network, relative to the
            largest output; 0 for files of tensors, which are copies.
        notes: Sentences on what a program that loads the file must know.
        description: A file with the description, if the format has no place for it.
    """

    path: Path
    format: str
    bytes: int
    difference: float
    notes: tuple[str, ...]
    description: Path | None


FORMATS = {
    ".pt2": "torch.export",
    ".pt": "state_dict",
    ".pth": "state_dict",
    ".onnx": "ONNX",
    ".safetensors": "safetensors",
}


def export(run: Run, path: str | Path, *, module: nn.Module | None, example: object) -> ExportedFile:
    """Write the network of a run; see `Run.export`."""
    check_path("the file", path)
    target = Path(path)
    kind = FORMATS.get(target.suffix.lower())
    if kind is None:
        raise UserError(f"{target.name} has no known suffix; use one of {', '.join(FORMATS)}")
    beside = target.with_name(f"{target.name}.json") if kind == "state_dict" else None
    for each in (target, *([] if beside is None else [beside])):
        if each.exists() or each.is_symlink():
            raise UserError(f"{each} exists; give another name, or remove it")
    from cotswold.api.export.subject import subject_of
    from cotswold.api.threads import compute_threads
    from cotswold.files import DiskRemedy, disk_errors, replacing

    with compute_threads(None, run.recipe), warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=FutureWarning, module=r"copyreg")  # torch about itself
        subject = subject_of(run, module, example, needs_inputs=kind in ("torch.export", "ONNX"))
        with disk_errors(target, UserError, DiskRemedy.REPEAT):
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as file:
                difference, notes = _writer(kind)(subject, file)
            if beside is not None:
                from cotswold.api.export.tensors import write_description

                write_description(subject, beside)
    notes += filter(None, [precision_note(run.recipe)])
    return ExportedFile(target, kind, target.stat().st_size, difference, tuple(notes), beside)


def _writer(kind: str) -> Callable[[Subject, BinaryIO], tuple[float, list[str]]]:
    if kind == "torch.export":
        from cotswold.api.export.program import write_program

        return write_program
    if kind == "ONNX":
        from cotswold.api.export.onnx_file import write_onnx

        return write_onnx
    from cotswold.api.export.tensors import write_safetensors, write_state_dict

    return write_state_dict if kind == "state_dict" else write_safetensors

"""Files of tensors: PyTorch's state_dict, safetensors.

Knows: names and values of tensors. Does not know: runs, programs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from cotswold.api.export.portable import as_sequential
from cotswold.api.export.subject import KEY, Subject
from cotswold.errors import MissingExtraError, install
from cotswold.files import replace_file


def tensors_of_network(subject: Subject) -> dict[str, Tensor]:
    """Return the tensors of a network; of a recipe under the names of `torch.nn.Sequential`.

    If some layers are Cotswold's own, the names stay those of the run's network.
    """
    network = subject.network if subject.own_layers else as_sequential(subject.network)
    return {name: each.detach().clone().contiguous() for name, each in network.state_dict().items()}


def notes_of(subject: Subject) -> list[str]:
    """Return what the reader of a file of tensors must know."""
    own = subject.own_layers
    if not own:
        return []
    return [
        f"{', '.join(own[:3])}{', …' if len(own) > 3 else ''}: only Cotswold has these layers, so the "
        "tensors load into a network built by Cotswold; a .pt2 file runs without it"
    ]


def write_state_dict(subject: Subject, file: BinaryIO) -> tuple[float, list[str]]:
    """Write a state_dict for `torch.load(path, weights_only=True)`."""
    torch.save(tensors_of_network(subject), file)
    return 0.0, notes_of(subject)


def write_description(subject: Subject, path: Path) -> None:
    """Write the description next to a state_dict, which has no place for it."""
    replace_file(path, (json.dumps(subject.description, indent=1) + "\n").encode())


def write_safetensors(subject: Subject, file: BinaryIO) -> tuple[float, list[str]]:
    """Write a safetensors file with the description in its metadata."""
    try:
        from safetensors.torch import save
    except ImportError as error:
        raise MissingExtraError(
            f"a .safetensors file needs safetensors; install it: {install('export')}"
        ) from error
    file.write(save(tensors_of_network(subject), metadata={"format": "pt", KEY: subject.text}))
    return 0.0, notes_of(subject)

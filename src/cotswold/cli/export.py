"""`cotswold export` and `cotswold card`.

Knows: the arguments of the commands. Does not know: file formats, the content of a card.
"""

from __future__ import annotations

from pathlib import Path


def export(run: Path, file: Path) -> None:
    """Write a run's network to a file that other programs load without Cotswold.

    The suffix selects the format. `.pt2`: a program of torch.export. `.onnx`: a program of ONNX. `.pt`,
    `.pth`: a state_dict of PyTorch, with a `.json` file next to it. `.safetensors`: the tensors alone. Each
    file has the preparation of the samples and the names of the classes. The outputs of a program are
    compared with those of the network before the file appears. `.onnx` and `.safetensors` need the extra
    `export`.

    A run that trained a module of a Python program is exported in Python, with
    `run.export(path, module=..., example=...)`.

    Examples:

      cotswold export runs/digits digits.pt2
      cotswold export runs/digits digits.onnx
      cotswold export runs/digits digits.pt                the state_dict
      cotswold export runs/digits digits.safetensors

    Parameters
    ----------
    run
        The run's directory.
    file
        The new file; its suffix is one of .pt2, .onnx, .pt, .pth and .safetensors.
    """
    import cotswold

    found = cotswold.Run(run).export(file)
    checked = f"; outputs differ by at most {found.difference:.1g}" if found.difference else ""
    print(f"{found.path}: {found.format}, {found.bytes:,} bytes{checked}")
    if found.description is not None:
        print(f"{found.description}: preparation of the samples, names of the classes, recipe")
    for note in found.notes:
        print(f"note: {note}")


def card(run: Path, file: Path | None = None, *, license: str | None = None) -> None:
    """Write a run's model card: a README.md in the form that the Hugging Face hub reads.

    It has the data, the figures of the best validation and of `cotswold evaluate`, if that was called, time
    and cost of the training, code that loads the network, and the recipe. It shows only the last part of
    absolute paths.

    Examples:

      cotswold card runs/digits
      cotswold card runs/digits README.md --license apache-2.0

    Parameters
    ----------
    run
        The run's directory.
    file
        The new file. Default: print the card.
    license
        License of the network, by its name on the hub.
    """
    import cotswold

    text = cotswold.Run(run).card(file, license=license)
    print(text if file is None else f"{file}: model card")

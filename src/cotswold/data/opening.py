"""From a path to a source.

Knows: how to tell the kinds of sources apart. Does not know: how each is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from cotswold.data.source import Labels, Source
from cotswold.errors import SourceError

KINDS = (
    "a folder or .zip of pictures, .npy, .npz, MNIST's idx, CIFAR-10's .bin (both also .gz), or builtin:demo"
)


def open_source(
    path: str | Path, *, include: Iterable[str] = (), exclude: Iterable[str] = (), labels: Labels = "none"
) -> Source:
    """Open a source of pictures of any supported kind.

    ``include`` and ``exclude`` are patterns of paths inside the source (``*`` also matches slashes).
    ``labels``: ``"folders"`` takes a picture's parent folder, ``"file"`` what npz, idx and CIFAR-10 carry.
    Raises SourceError for a source that is missing, empty, damaged or of no known kind.
    """
    if isinstance(include, str) or isinstance(exclude, str):
        raise SourceError('include and exclude are lists of patterns; write ["train/*"], not "train/*"')
    if labels not in get_args(Labels):
        raise SourceError(f'labels are {labels!r}; use "none", "folders" or "file"')
    patterns = tuple(include), tuple(exclude)
    text = str(path)
    if not text:
        raise SourceError(f"the source's name is empty; give {KINDS}")
    if text.startswith("builtin:"):
        from cotswold.data.synthetic import open_builtin

        return open_builtin(text, *patterns, labels)
    where = Path(path).expanduser()
    if not where.exists():
        raise SourceError(f"{where} does not exist; give {KINDS}")
    if where.is_dir():
        return _open_folder(where, *patterns, labels)
    if not where.is_file():
        raise SourceError(f"{where} is no regular file; give {KINDS}")
    return _open_file(where, *patterns, labels)


def _open_folder(where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    from cotswold.data import cifar, idx
    from cotswold.data.folder import FolderSource

    try:
        names = sorted(entry.name for entry in where.iterdir())
    except PermissionError as error:
        raise SourceError(f"{where} may not be read; change its permissions") from error
    if not names:
        raise SourceError(f"{where} is empty; give {KINDS}")
    if any(idx.is_pictures(name) for name in names):
        return idx.open_idx(where, include, exclude, labels)
    if any(cifar.is_batch(name) for name in names):
        return cifar.open_cifar(where, include, exclude, labels)
    return FolderSource(where, include, exclude, labels)


def _open_file(where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    from cotswold.data import arrays, cifar, idx
    from cotswold.data.archive import ZipSource
    from cotswold.data.folder import is_picture

    name = where.name.lower()
    if name.endswith(".zip"):
        return ZipSource(where, include, exclude, labels)
    if name.endswith((".npy", ".npz")):
        return arrays.open_arrays(where, include, exclude, labels)
    if idx.is_pictures(where.name):
        return idx.open_idx(where, include, exclude, labels)
    if name.endswith((".bin", ".bin.gz")):
        return cifar.open_cifar(where, include, exclude, labels)
    if is_picture(where.name):
        raise SourceError(f"{where} is a single picture; give the folder that it lies in")
    raise SourceError(f"{where} is of no known kind; give {KINDS}")

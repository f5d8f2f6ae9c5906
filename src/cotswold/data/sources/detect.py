"""Opening of data sources by path.

Knows: how to detect the kind of a source. Does not know: how each kind is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from cotswold.data.datasets.japanese_ocr import japanese_source
from cotswold.data.sources import plugins as joined
from cotswold.data.sources.base import Kind, Source
from cotswold.data.sources.file_names import Labels
from cotswold.data.sources.tables import is_table, table
from cotswold.data.sources.vectors import VectorSource
from cotswold.errors import SourceError
from cotswold.files import expanded

IMAGES = (
    "a folder, .zip or .tar of images, .npy, .npz, MNIST's idx, CIFAR-10's .bin (both also .gz), or "
    "builtin:demo"
)
VECTORS = (
    "an .npy, .npz or idx file with an array (n, features), or a set from `cotswold data make japanese-ocr`"
)
FRAMES = (
    "a folder or .zip of .npy files (frames, features), one for each sequence, or an .npz with `frames` and "
    "`lengths`, or a folder or zip of recordings (.wav, .flac)"
)
TABLE = "a CSV file (.csv, .tsv, .txt, also .gz) or a Parquet file"
_KINDS: dict[Kind | None, str] = {
    "images": IMAGES,
    "vectors": VECTORS,
    "frames": FRAMES,
    "table": TABLE,
    None: f"{IMAGES}; for vectors {VECTORS}; for sequences {FRAMES}; for tables {TABLE}",
}


_TABLES = {".feather": "read_feather", ".xlsx": "read_excel", ".json": "read_json", ".jsonl": "read_json"}
"""Suffixes of tables that are not read, and the pandas function that reads each."""
_ARCHIVES = frozenset([".h5", ".hdf5", ".mat", ".pkl", ".pickle", ".pt", ".pth", ".arrow", ".tfrecord"])
"""Suffixes of array files that are not supported."""


def open_source(
    path: str | Path, *, include: Iterable[str] = (), exclude: Iterable[str] = (), labels: Labels = "none"
) -> Source:
    """Open a source of images.

    Args:
        path: A folder or zip of images, a .npy, .npz, idx or CIFAR-10 file, ``builtin:demo``, or the
            ``scheme:...`` of an installed plug-in.
        include: Patterns of paths inside the source to use; ``*`` also matches slashes. [all]
        exclude: Patterns of paths to leave out. [none]
        labels: ``"folders"`` labels an image by its parent folder; ``"file"`` reads the labels of npz, idx
            and CIFAR-10 files; ``"none"`` reads no labels.

    Raises:
        SourceError: if the source is missing, empty, damaged or of an unknown kind.
    """
    patterns = _glob_patterns(include, exclude, labels)
    if str(path).startswith("builtin:"):
        from cotswold.data.datasets.demo import open_builtin

        return open_builtin(str(path), *patterns, labels)
    if joined.has_plugin_scheme(str(path)):
        found = joined.open_plugin_source(str(path), *patterns, labels)
        if not isinstance(found, Source):
            raise _kind_mismatch(path, found.kind, "images")
        return found
    if japanese_source.is_set(str(path)):
        raise _kind_mismatch(path, "vectors", "images")
    where = _require_path(path, "images")
    return (_open_folder if where.is_dir() else _open_file)(where, *patterns, labels)


def open_vectors(
    path: str | Path,
    kind: Kind = "vectors",
    *,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    labels: Labels = "none",
) -> VectorSource:
    """Open a source of vectors or of frames.

    Vectors are an array (n, features) in an .npy, .npz or idx file. Labels are in `name.labels.npy`, in the
    same .npz, or in the idx file next to it. A set of Japanese print is ``folder``, ``folder:611200`` (the
    number of training samples) or one of its held-out parts, ``folder:families``.

    Frames are .npy files (frames, features) in a folder or zip, one per sequence, or an .npz with `frames`,
    `lengths` and `labels`. Labels of .npy files are in `name.labels.npy` next to each (``"file"``), or are
    the parent folders (``"folders"``).

    Args:
        path: The file or folder, or the ``scheme:...`` of an installed plug-in.
        kind: ``"vectors"`` or ``"frames"``.
        include: Patterns of names inside the source to use; ``*`` also matches slashes. [all]
        exclude: Patterns of names to leave out. [none]
        labels: ``"none"``, ``"file"`` or ``"folders"``, as above.

    Raises:
        SourceError: if the source is missing, empty, damaged or of an unknown kind.
    """
    patterns = _glob_patterns(include, exclude, labels)
    if joined.has_plugin_scheme(str(path)):
        found = joined.open_plugin_source(str(path), *patterns, labels)
        if not isinstance(found, VectorSource) or found.kind != kind:
            raise _kind_mismatch(path, found.kind, kind)
        return found
    if japanese_source.is_set(str(path)):
        if kind != "vectors":
            raise _kind_mismatch(path, "vectors", kind)
        return japanese_source.open_set(str(path), *patterns, labels)
    where = _require_path(path, kind)
    return (_open_frames if kind == "frames" else _open_vectors)(where, *patterns, labels)


def open_samples(
    path: str | Path,
    kind: Kind | None = None,
    *,
    include: Iterable[str] = (),
    exclude: Iterable[str] = (),
    labels: Labels = "none",
) -> Source | VectorSource:
    """Open a source of images, vectors, frames or a table.

    If ``kind`` is None, it is detected: a CSV or Parquet file is a table without a target (`table` opens one
    with a target), an array (n, features) is vectors, one of three or four dimensions is
    images. A folder or zip with .npy files and no image is sequences of frames.

    Args:
        path: The file or folder, or the ``scheme:...`` of an installed plug-in.
        kind: ``"images"``, ``"vectors"``, ``"frames"``, ``"table"``, or None to detect it.
        include: Patterns of names inside the source to use; ``*`` also matches slashes. [all]
        exclude: Patterns of names to leave out. [none]
        labels: ``"none"``, ``"file"`` or ``"folders"``, as in `open_source` and `open_vectors`.

    Raises:
        SourceError: if the source is missing, empty, damaged or of an unknown kind.
    """
    kind = kind or kind_of(path)
    if kind == "table":
        if include or exclude or labels != "none":
            raise SourceError(
                f"{path} is a table, to which include, exclude and labels do not apply; name its columns "
                "with ignore and target"
            )
        return table(path)
    if kind == "images":
        return open_source(path, include=include, exclude=exclude, labels=labels)
    return open_vectors(path, kind, include=include, exclude=exclude, labels=labels)


def open_evaluation_source(
    path: str | Path, kind: Kind | None = None, *, labels: Labels = "none"
) -> Source | VectorSource:
    """Open samples for evaluation or prediction: as `open_samples`, or a single image file.

    Args:
        path: The file or folder.
        kind: ``"images"``, ``"vectors"``, ``"frames"``, ``"table"``, or None to detect it.
        labels: ``"none"``, ``"file"`` or ``"folders"``.

    Raises:
        SourceError: as `open_samples`.
    """
    from cotswold.data.sources.folder import ImageFile, is_image

    where = expanded(path)
    if kind in ("images", None) and is_image(where.name) and where.is_file():
        return ImageFile(where, labels)
    return open_samples(path, kind, labels=labels)


def kind_of(path: str | Path) -> Kind:
    """Detect the kind of a source by its files and the shapes of its arrays ["images"].

    Raises SourceError if the source is missing or cannot be read.
    """
    if str(path).startswith("builtin:"):
        return "images"
    if joined.has_plugin_scheme(str(path)):
        return joined.open_plugin_source(str(path), (), (), "none").kind
    if japanese_source.is_set(str(path)):
        return "vectors"
    where = _require_path(path, None)
    return _kind_of_folder(where) if where.is_dir() else _kind_of_file(where)


def _kind_mismatch(path: str | Path, found: Kind, wanted: Kind) -> SourceError:
    return SourceError(f"{path} contains {found}, not {wanted}; set data.type in the recipe")


def _kind_of_folder(where: Path) -> Kind:
    from cotswold.data.datasets import cifar
    from cotswold.data.formats import idx, vector_files
    from cotswold.data.formats.frame_files import is_array
    from cotswold.data.sources.folder import is_image, walk_files

    names = _names(where, None)
    if any(idx.is_images(name) or cifar.is_batch(name) for name in names):
        return "images"
    if any(vector_files.is_idx(name) for name in names):
        return "vectors"
    arrays = False
    for path in walk_files(where):
        name = path.relative_to(where).as_posix()
        if is_image(name):
            return "images"
        arrays = arrays or is_array(name)
    return "frames" if arrays or _has_recordings(where) else "images"


def _has_recordings(where: Path) -> bool:
    """True if a folder or zip contains recordings and no arrays."""
    from cotswold.data.formats.frame_files import is_array
    from cotswold.data.formats.recordings import is_audio
    from cotswold.data.formats.zip_archive import member_names
    from cotswold.data.sources.folder import walk_files

    if not where.is_dir() and where.suffix.lower() != ".zip":
        return False
    names = [path.name for path in walk_files(where)] if where.is_dir() else member_names(where)
    return any(map(is_audio, names)) and not any(map(is_array, names))


def _kind_of_file(where: Path) -> Kind:
    from cotswold.data.formats import vector_files
    from cotswold.data.formats.array_files import Npz
    from cotswold.data.formats.frame_files import has_lengths, is_array
    from cotswold.data.formats.zip_archive import member_names
    from cotswold.data.sources.folder import is_image

    name = where.name.lower()
    if is_table(name):
        return "table"
    if name.endswith(".zip"):
        members = member_names(where)
        arrays = any(map(is_array, members)) and not any(map(is_image, members))
        return "frames" if arrays or _has_recordings(where) else "images"
    if name.endswith(".npy"):
        return "vectors" if len(vector_files.npy_header(where)[0]) in (1, 2) else "images"
    if name.endswith(".npz"):
        if has_lengths(where):
            return "frames"
        extents = {len(shape) for shape, _ in Npz(where).shapes.values()}
        return "vectors" if 2 in extents and max(extents) == 2 else "images"
    return "vectors" if vector_files.is_idx(where.name) else "images"


def _glob_patterns(
    include: Iterable[str], exclude: Iterable[str], labels: Labels
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if isinstance(include, str) or isinstance(exclude, str):
        raise SourceError('include and exclude are lists of patterns; write ["train/*"], not "train/*"')
    if labels not in get_args(Labels):
        raise SourceError(f'labels must be "none", "folders" or "file", got {labels!r}')
    return tuple(include), tuple(exclude)


def _require_path(path: str | Path, kind: Kind | None) -> Path:
    """Return the path of an existing folder or regular file."""
    if not str(path):
        raise SourceError(f"the name of the source is empty; give {_KINDS[kind]}")
    where = expanded(path)
    if not where.exists():
        scheme, colon, _ = str(path).partition(":")
        known = joined.schemes() if colon and scheme.isidentifier() else []
        also = f", or a source of an installed package: {' '.join(known)}" if known else ""
        raise SourceError(f"{where} does not exist; give {_KINDS[kind]}{also}")
    if not where.is_dir() and not where.is_file():
        raise SourceError(f"{where} is not a regular file; give {_KINDS[kind]}")
    return where


def _conversion_remedy(where: Path, kind: Kind) -> str:
    """Return the remedy for an unsupported file: how to save a table or archive as arrays."""
    suffix = where.suffix.lower()
    if is_table(where):
        return 'it is a table: set data.type to "table" and data.target to the column to predict'
    if suffix in _TABLES:
        return (
            f"save it as CSV, for instance with pandas: pandas.{_TABLES[suffix]}({where.name!r}).to_csv("
            f'"{where.stem}.csv", index=False), and set data.type to "table"'
        )
    if suffix in _ARCHIVES:
        name = f"{where.stem}.npz"
        return f'save its arrays with numpy.savez("{name}", x=..., labels=...), and give {name}'
    return f"give {_KINDS[kind]}"


def _names(where: Path, kind: Kind | None) -> list[str]:
    """Return the names directly in a folder."""
    try:
        names = sorted(entry.name for entry in where.iterdir())
    except PermissionError as error:
        raise SourceError(f"{where} is not readable; change its permissions") from error
    if not names:
        raise SourceError(f"{where} is empty; give {_KINDS[kind]}")
    return names


def _open_folder(where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    from cotswold.data.datasets import cifar
    from cotswold.data.formats import idx
    from cotswold.data.formats.tar_shards import TarSource, is_shard
    from cotswold.data.sources.folder import FolderSource

    names = _names(where, "images")
    if any(map(is_shard, names)):
        return TarSource(where, include, exclude, labels)
    if any(idx.is_images(name) for name in names):
        return idx.open_idx(where, include, exclude, labels)
    if any(cifar.is_batch(name) for name in names):
        return cifar.open_cifar(where, include, exclude, labels)
    return FolderSource(where, include, exclude, labels)


def _open_file(where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels) -> Source:
    from cotswold.data.datasets import cifar
    from cotswold.data.formats import idx
    from cotswold.data.formats.tar_shards import TarSource, is_shard
    from cotswold.data.formats.zip_archive import ZipSource
    from cotswold.data.sources import arrays
    from cotswold.data.sources.folder import is_image

    name = where.name.lower()
    if name.endswith(".zip"):
        return ZipSource(where, include, exclude, labels)
    if is_shard(name):
        return TarSource(where, include, exclude, labels)
    if name.endswith((".npy", ".npz")):
        return arrays.open_arrays(where, include, exclude, labels)
    if idx.is_images(where.name):
        return idx.open_idx(where, include, exclude, labels)
    if name.endswith((".bin", ".bin.gz")):
        return cifar.open_cifar(where, include, exclude, labels)
    if is_image(where.name):
        raise SourceError(f"{where} is a single image; give the folder that contains it")
    raise SourceError(f"{where} is of an unknown kind; {_conversion_remedy(where, 'images')}")


def _open_vectors(
    where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> VectorSource:
    from cotswold.data.formats import vector_files

    name = where.name.lower()
    if where.is_dir():
        if any(vector_files.is_idx(name) for name in _names(where, "vectors")):
            return vector_files.open_idx(where, include, exclude, labels)
        raise SourceError(f"{where} contains no idx files of vectors; give {VECTORS} (or set type to frames)")
    if name.endswith(".npy"):
        return vector_files.open_npy(where, include, exclude, labels)
    if name.endswith(".npz"):
        return vector_files.open_npz(where, include, exclude, labels)
    if vector_files.is_idx(where.name):
        return vector_files.open_idx(where, include, exclude, labels)
    raise SourceError(f"{where} is of an unknown kind; {_conversion_remedy(where, 'vectors')}")


def _open_frames(
    where: Path, include: tuple[str, ...], exclude: tuple[str, ...], labels: Labels
) -> VectorSource:
    from cotswold.data.formats import frame_files

    if _has_recordings(where):
        from cotswold.data.datasets.spoken_digits import is_recording, open_recordings
        from cotswold.data.formats.recordings import Recordings, open_audio

        digits = all(map(is_recording, Recordings(where).names))
        return (open_recordings if digits else open_audio)(where, include, exclude, labels)
    if where.is_dir():
        return frame_files.open_folder(where, include, exclude, labels)
    if where.suffix.lower() == ".zip":
        return frame_files.open_zip(where, include, exclude, labels)
    if where.suffix.lower() == ".npz":
        return frame_files.open_npz(where, include, exclude, labels)
    raise SourceError(f"{where} is of an unknown kind; {_conversion_remedy(where, 'frames')}")

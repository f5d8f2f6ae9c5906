"""Data sets of the package `datasets` (Hugging Face) as pairs of tensors, read lazily.

Knows: columns, features with class names, images. Does not know: downloads, networks, stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from cotswold.data.formats.image import BrokenImageError, open_image
from cotswold.errors import UserError
from cotswold.phrases import counted

Pair = tuple[Any, Tensor]
_SHOWN = 8
_EXACT_MAX = 1 << 24
"""Smaller integers are exact in float32."""


@dataclass(frozen=True)
class HubColumns:
    """The columns of a data set that a network reads, and their conversion to tensors.

    Args:
        inputs: Names of the columns of the input; several columns of numbers become one vector.
        target: Name of the column of the target.
        classes: Names of the classes; empty for numbers.
        transform: Converts the value of the input column to a tensor. [`as_tensor`]
    """

    inputs: tuple[str, ...]
    target: str
    classes: tuple[str, ...]
    transform: Callable[[Any], Any] | None

    def pair(self, row: dict[str, Any]) -> Pair:
        """Return the input and the target of a row."""
        values = [row[name] for name in self.inputs]
        if self.transform is not None:
            source: Any = self.transform(values[0] if len(values) == 1 else tuple(values))
        elif len(values) == 1:
            source = as_tensor(values[0], self.inputs[0])
        else:
            named = zip(values, self.inputs, strict=True)
            source = torch.cat([as_tensor(value, name).reshape(-1) for value, name in named])
        return source, self._target(row[self.target])

    def _target(self, value: Any) -> Tensor:
        if value is None:
            raise _absent(self.target)
        if isinstance(value, Tensor | np.ndarray | np.generic) and not value.ndim:
            value = value.item()  # a data set with the format "torch" or "numpy"
        if isinstance(value, str):
            if value not in self.classes:
                raise UserError(
                    f"column {self.target!r} has {value!r}, which is not among its "
                    f"{counted(len(self.classes), 'class')}; give classes"
                )
            return torch.tensor(self.classes.index(value))
        if isinstance(value, int):
            return torch.tensor(int(value))
        return as_tensor(value, self.target)


class HubDataset(Dataset[Pair]):
    """Rows of a `datasets.Dataset` as pairs (input, target); a row is read and decoded on access.

    Args:
        rows: The data set.
        columns: The columns to read.
    """

    def __init__(self, rows: Any, columns: HubColumns) -> None:
        self._rows, self._columns = rows, columns
        self.classes = columns.classes
        """Names of the classes; empty for numbers."""

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Pair:
        return self._columns.pair(self._rows[int(index)])

    def __getitems__(self, indices: Sequence[int]) -> list[Pair]:
        """Return several pairs, read together."""
        together = self._rows[list(map(int, indices))]
        return [
            self._columns.pair({name: values[at] for name, values in together.items()})
            for at in range(len(indices))
        ]


class HubStream(IterableDataset[Pair]):
    """Rows of a `datasets.IterableDataset` as pairs (input, target), read one after another.

    Args:
        rows: The data set.
        columns: The columns to read.
        samples: Number of rows.
    """

    def __init__(self, rows: Any, columns: HubColumns, samples: int) -> None:
        self._rows, self._columns, self._samples = rows, columns, samples
        self.classes = columns.classes
        """Names of the classes; empty for numbers."""

    def __len__(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[Pair]:
        return map(self._columns.pair, iter(self._rows))


def from_hub(
    dataset: Any,
    *,
    inputs: str | Sequence[str],
    target: str,
    classes: Sequence[str] | None = None,
    transform: Callable[[Any], Any] | None = None,
    samples: int | None = None,
) -> HubDataset | HubStream:
    """Return columns of a data set of the package `datasets` as a data set for `cotswold.train`.

    Rows are read and decoded when they are needed. Images become float32 (channel, y, x) from 0 to 1; numbers
    and lists become float32. Single integers of the target stay integers. Other integers that float32 does
    not represent exactly are an error.

    Args:
        dataset: A `datasets.Dataset`, or a `datasets.IterableDataset` (streaming).
        inputs: The column of the input, or several columns of numbers that become one vector.
        target: The column of the target.
        classes: Names of the classes, if the target is text; for a validation set those of the training set,
            ``classes=training.classes``. [those of the data set; else all texts, sorted]
        transform: Converts the value of the input (a tuple of values for several columns) to a tensor, such
            as a tokeniser or an augmentation.
        samples: Number of rows of a stream, which is the length of an epoch. [as its description says]

    Returns:
        A map-style data set of pairs (input, target), or an iterable one for a stream.

    Raises:
        UserError: if ``dataset`` is of another type, or lacks a column.
    """
    package = type(dataset).__module__.partition(".")[0]
    if package != "datasets":
        raise UserError(f"from_hub needs a datasets.Dataset or IterableDataset, got {type(dataset).__name__}")
    if isinstance(dataset, dict):
        raise UserError(
            f"the data set has the splits {', '.join(map(repr, dataset))}; give one, such as "
            f"dataset[{next(iter(dataset), 'train')!r}]"
        )
    names = (inputs,) if isinstance(inputs, str) else tuple(inputs)
    known = dataset.column_names
    absent = [name for name in (*names, target) if known is not None and name not in known]
    if absent or not names:
        shown = ", ".join(map(repr, (known or [])[:_SHOWN]))
        raise UserError(
            f"the data set has no column {absent[0] if absent else ''!r}; its columns are {shown}"
        )
    is_stream = not hasattr(dataset, "__len__")
    feature = (dataset.features or {}).get(target)
    if classes is None:
        classes = getattr(feature, "names", None)
    if classes is None and getattr(feature, "dtype", None) in ("string", "large_string"):
        if is_stream:
            raise UserError(f"column {target!r} of the stream has texts; give classes, all of them in order")
        texts = dataset.unique(target)
        if None in texts:
            raise _absent(target)
        classes = sorted(texts)
    for name in names if transform is None else ():
        kind: Any = type((dataset.features or {}).get(name))
        if kind.__name__ == "Image":  # `as_tensor` refuses images that Pillow would reduce to 8 bits
            dataset = dataset.cast_column(name, kind(decode=False))
    columns = HubColumns(names, target, tuple(classes or ()), transform)
    if is_stream:
        return HubStream(dataset, columns, samples or _stated_rows(dataset))
    return HubDataset(dataset.select_columns(list(dict.fromkeys([*names, target]))), columns)


def _stated_rows(stream: Any) -> int:
    """Return the number of rows that the description of a stream states. Raises UserError."""
    stated = (getattr(stream.info, "splits", None) or {}).get(str(stream.split))
    if stated is None or not stated.num_examples:
        raise UserError("the number of rows of the stream is unknown; give samples, the length of an epoch")
    return int(stated.num_examples)


def _absent(name: str) -> UserError:
    return UserError(f"column {name!r} has a row without a value; remove such rows with dataset.filter")


def _opened(value: dict[str, Any], name: str) -> Image.Image:
    content = value.get("bytes")
    try:
        return open_image(f"an image of column {name!r}", Path(value["path"]) if content is None else content)
    except BrokenImageError as error:
        raise UserError(f"{error}; or give transform, which reads the images") from error


def as_tensor(value: Any, name: str) -> Tensor:
    """Return numbers as float32, and an image as float32 (channel, y, x) from 0 to 1.

    Raises UserError for other values.
    """
    if value is None:
        raise _absent(name)
    if isinstance(value, dict) and value.keys() == {"bytes", "path"}:
        value = _opened(value, name)
    if isinstance(value, Image.Image):
        pixels = np.asarray(value if value.mode in ("L", "RGB") else value.convert("RGB"))
        if value.mode.startswith(("I", "F")):
            raise UserError(
                f"column {name!r} has images of more than 8 bits; give transform, which keeps them"
            )
        planes = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
        return torch.from_numpy(np.ascontiguousarray(planes, np.float32)) / 255
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.float()
    given = value.numpy(force=True) if isinstance(value, Tensor) else value
    try:
        found = np.array(given, np.float32)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"column {name!r} has values of type {type(value).__name__}, which are not numbers; give "
            "transform, which converts them to tensors"
        ) from error
    if (np.abs(found) >= _EXACT_MAX).any():
        _refuse_lost_digits(np.asarray(given), found, name)
    return torch.from_numpy(found)


def _refuse_lost_digits(given: NDArray[Any], found: NDArray[np.float32], name: str) -> None:
    """Raise UserError for an integer that float32 does not represent exactly."""
    if given.dtype.kind not in "iuO":
        return
    pairs = zip(given.ravel().tolist(), found.ravel().tolist(), strict=True)
    lost = next((before for before, after in pairs if isinstance(before, int) and before != after), None)
    if lost is not None:
        raise UserError(
            f"column {name!r} has the integer {lost}, which float32 does not represent exactly; leave out a "
            "column of identifiers, or give transform, which converts the values to a tensor of another type"
        )

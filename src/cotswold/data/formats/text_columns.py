"""The texts of a table's column in little memory.

Knows: NumPy's texts of variable length. Does not know: files, the meaning of the texts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

BLOCK_ROWS = 4096
"""Rows that are converted together."""


class TextColumn(Collection[str]):
    """Texts in the order of the rows: 16 bytes for each of up to 15 bytes, instead of some 60.

    Args:
        texts: The first texts.
    """

    def __init__(self, texts: Iterable[str] = ()) -> None:
        self._blocks: list[NDArray[Any]] = []
        self._rows = 0
        rest = iter(texts)
        while block := list(islice(rest, BLOCK_ROWS)):
            self.extend(block)

    def extend(self, texts: list[str]) -> None:
        """Add the texts of the next rows."""
        try:
            self._blocks.append(np.array(texts, np.dtypes.StringDType()))
        except UnicodeEncodeError:  # half of a surrogate pair, which UTF-8 lacks
            self._blocks.append(np.array(texts, object))
        self._rows += len(texts)

    def __len__(self) -> int:
        return self._rows

    def __iter__(self) -> Iterator[str]:
        for block in self._blocks:
            yield from block.tolist()

    def __contains__(self, text: object) -> bool:
        return any(text == each for each in self)

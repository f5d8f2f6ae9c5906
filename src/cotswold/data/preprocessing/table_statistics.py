"""The transform of a table, estimated from its training rows: replacements of missing values, and scales.

Knows: medians, frequencies, moments. Does not know: sources, stores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from operator import or_

import numpy as np

from cotswold.data.preprocessing.table_schema import TableSchema
from cotswold.data.preprocessing.vectors import (
    Float64,
    Moments,
    VectorPreparation,
    VectorTransform,
    standardising,
)
from cotswold.errors import SourceError

Blocks = Callable[[], Iterable[Float64]]
"""Yields the training rows in blocks (row, feature), NaN for missing values."""


def estimate_table(preparation: VectorPreparation, blocks: Blocks) -> VectorTransform:
    """Return the transform of a table.

    Numbers are standardised. Features of categories stay 0 and 1.

    Raises:
        SourceError: if a column has no value in the training rows, or its numbers exceed float64's range.
    """
    schema = preparation.table
    assert schema is not None, "a table has a schema"
    fill = _replacements(schema, blocks) if schema.missing == "impute" else None
    if not preparation.standardise:
        return VectorTransform(preparation, fill=fill)
    with np.errstate(over="ignore", invalid="ignore"):  # reported below
        filled = (rows if fill is None else np.where(np.isnan(rows), fill, rows) for rows in blocks())
        moments = reduce(or_, map(Moments.of, filled))
    wrong = np.flatnonzero(~moments.is_exact)
    if len(wrong):
        raise SourceError(
            f"column {schema.feature_names[int(wrong[0])]!r} has numbers whose standard deviation exceeds "
            "the range of float64; scale this column"
        )
    found = standardising(preparation, moments)
    assert found.mean is not None and found.deviation is not None, "it standardises"
    categories = np.array(schema.is_category)
    mean, deviation = np.where(categories, 0.0, found.mean), np.where(categories, 1.0, found.deviation)
    return VectorTransform(preparation, mean, deviation, fill)


def _replacements(schema: TableSchema, blocks: Blocks) -> Float64:
    """Return the median of each column of numbers, and 1 for the most frequent category of the others."""
    is_number = ~np.array(schema.is_category)
    numbers, counts = [], np.zeros(schema.features)
    for rows in blocks():
        numbers.append(rows[:, is_number])
        counts += np.nansum(rows, 0)
    fill = np.zeros(schema.features)
    if is_number.any():
        values = np.concatenate(numbers)
        empty = np.isnan(values).all(0)
        if empty.any():
            name = np.array(schema.feature_names)[is_number][empty][0]
            raise SourceError(
                f'column {str(name)!r} has no value in the training rows; ignore it: ignore = ["{name}"]'
            )
        fill[is_number] = np.nanmedian(values, 0)
    start = 0
    for column in schema.columns:
        if column.categories is not None:
            fill[start + int(counts[start : start + column.features].argmax())] = 1
        start += column.features
    return fill

"""Assignment of samples to splits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.conftest import Named

from cotswold.data import Preparation
from cotswold.data.store.splits import Request, assign_splits
from cotswold.errors import SourceError, UserError

SMALL = Preparation((16, 20))


@settings(max_examples=100)
@given(
    count=st.integers(1, 300),
    validation=st.floats(0, 0.6),
    test=st.floats(0, 0.39),
    seed=st.integers(0, 5),
    limit=st.none() | st.integers(1, 400),
)
def test_splits_share_no_image_and_training_is_never_empty(
    count: int, validation: float, test: float, seed: int, limit: int | None
) -> None:
    request = Request("", False, SMALL, "random", validation, test, seed, limit)
    parts = assign_splits(Named([None] * count), request)
    together = np.concatenate(list(parts.values()))
    assert len(together) == len(set(together.tolist())) == min(count, limit or count)
    assert len(parts["train"]) >= 1
    assert len(parts.get("validation", ())) == int(len(together) * validation)


def test_splits_by_folder_hold_validation_out_of_training_where_it_has_no_folder() -> None:
    named = Named(["train"] * 80 + ["test"] * 20)
    parts = assign_splits(named, Request("", False, SMALL, "folders", 0.25, 0, 0, None))
    assert {name: len(part) for name, part in parts.items()} == {"train": 60, "validation": 20, "test": 20}
    assert parts["test"].min() == 80
    with pytest.raises(SourceError, match="image 1 is in no folder"):
        assign_splits(Named(["train", None]), Request("", False, SMALL, "folders", 0, 0, 0, None))
    with pytest.raises(SourceError, match="no folder or file named train"):
        assign_splits(Named(["test"]), Request("", False, SMALL, "folders", 0, 0, 0, None))


def test_impossible_requests_are_refused() -> None:
    for wrong in (
        {"validation": 0.6, "test": 0.4},
        {"validation": -0.1},
        {"limit": 0},
        {"splits": "alphabet"},
    ):
        values = {"splits": "random", "validation": 0.05, "test": 0.0, "seed": 0, "limit": None, **wrong}
        with pytest.raises(UserError):
            Request("", False, SMALL, **values)  # type: ignore[arg-type]  # wrong on purpose

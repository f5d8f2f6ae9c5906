"""Untrusted JSON is an object of bounded size and depth, or MalformedError."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.files import MalformedError, parse_object, read_object, take


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "3",
        "null",
        "{",
        "[" * 100_000,
        '{"a":' * 100_000,
        '{"a": 1' + "0" * 5000 + "}",
        '{"a": ' + "[" * 70 + "]" * 70 + "}",
    ],
    ids=["empty", "list", "number", "null", "torn", "deep", "deep object", "huge number", "70 deep"],
)
def test_what_is_no_plain_object_is_malformed(text: str) -> None:
    with pytest.raises(MalformedError):
        parse_object(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_object_or_malformed(content: bytes) -> None:
    with contextlib.suppress(MalformedError):
        assert isinstance(parse_object(content), dict)


@pytest.mark.soak
@given(
    st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
)
def test_an_object_comes_back(table: dict[str, object]) -> None:
    assert parse_object(json.dumps(table)) == table


def test_an_object_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"step": 3}')
    assert read_object(tmp_path / "a.json") == {"step": 3}
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_object(tmp_path / "a.json", bytes_max=4)


def test_a_field_has_its_type_or_is_malformed() -> None:
    table: dict[str, object] = {"step": 3, "flag": True, "rate": 1}
    assert take(table, "step", int) == 3
    assert take(table, "rate", float) == 1.0
    with pytest.raises(MalformedError, match="has no field 'loss'"):
        take(table, "loss", float)
    with pytest.raises(MalformedError, match="a number in the field 'rate' that is too large"):
        take({"rate": 10**400}, "rate", float)
    with pytest.raises(MalformedError, match="has bool in the field 'flag', not int"):
        take(table, "flag", int)

"""Metrics in Prometheus's format, checked with an independent grammar."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cotswold.run.prometheus.exposition import MetricFamily, exposition

NAME, LABEL = r"[a-zA-Z_:][a-zA-Z0-9_:]*", r"[a-zA-Z_][a-zA-Z0-9_]*"
TEXT = r'(?:[^"\\\n]|\\\\|\\"|\\n)*'
VALUE = r"(?:NaN|[+-]Inf|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)"
SAMPLE = re.compile(rf'({NAME})(?:\{{({LABEL}="{TEXT}"(?:,{LABEL}="{TEXT}")*)\}})? ({VALUE})')
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\\\|\\n)*)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge)")


def parsed(text: str) -> dict[str, dict[str, Any]]:
    """Return the metrics of a text; fail on a line outside the grammar or in a wrong place."""
    found: dict[str, dict[str, Any]] = {}
    assert text == "" or text.endswith("\n")
    for line in text.split("\n")[:-1]:
        if (match := HELP.fullmatch(line)) is not None:
            assert match[1] not in found, "all lines of a metric are one group"
            found[match[1]] = {"help": unescaped(match[2]), "values": {}}
        elif (match := TYPE.fullmatch(line)) is not None:
            assert list(found)[-1] == match[1] and not found[match[1]]["values"], "before the first value"
            found[match[1]]["type"] = match[2]
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert list(found)[-1] == match[1] and "type" in found[match[1]]
            pairs = re.findall(rf'({LABEL})="({TEXT})"', match[2] or "")
            labels = tuple((name, unescaped(value)) for name, value in pairs)
            assert labels not in found[match[1]]["values"], "once"
            found[match[1]]["values"][labels] = float(match[3].replace("Inf", "inf"))
    return found


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: {"n": "\n"}.get(match[1], match[1]), text)


@given(st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=5), st.text(max_size=40))
def test_whatever_is_in_labels_and_help_comes_back(values: dict[str, float], about: str) -> None:
    text = exposition(
        [MetricFamily("a_b", "gauge", about, [({"x": key}, value) for key, value in values.items()])]
    )
    found = parsed(text)
    if not values:
        assert found == {}
        return
    assert found["a_b"]["help"] == about
    assert found["a_b"]["values"] == {(("x", key),): value for key, value in values.items()}


def test_what_is_no_number_has_its_word() -> None:
    family = MetricFamily(
        "a", "gauge", "", [({"x": str(each)}, each) for each in (math.nan, math.inf, -math.inf, 3.0)]
    )
    lines = exposition([family]).splitlines()[2:]
    assert [line.split()[1] for line in lines] == ["NaN", "+Inf", "-Inf", "3"]


@pytest.mark.parametrize(
    ("name", "kind", "label"),
    [("a b", "gauge", "x"), ("a", "counter", "x"), ("a_total", "gauge", "x"), ("a", "gauge", "x-y")],
)
def test_what_cannot_be_called_so_is_refused(name: str, kind: Any, label: str) -> None:
    with pytest.raises(ValueError, match="is not a valid name"):
        MetricFamily(name, kind, "", [({label: ""}, 1.0)])

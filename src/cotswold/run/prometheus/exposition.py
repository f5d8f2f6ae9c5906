"""Metrics in Prometheus' text format, version 0.0.4.

Knows: the format (HELP, TYPE, labels, escaping), the prefix of metric names. Does not know: which metrics
exist.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isinf, isnan
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Values = Sequence[tuple[Mapping[str, str], float]]
"""Values with their labels."""
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True)
class MetricFamily:
    """A metric, with a value for each set of labels; raises ValueError for invalid names."""

    name: str
    kind: Literal["counter", "gauge"]
    """Kind of the metric; a counter only grows, and its name ends with ``_total``."""
    help: str
    values: Values

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name!r} is not a valid name of a {self.kind}")
        for name in {name for labels, _ in self.values for name in labels}:
            if not _LABEL.fullmatch(name):
                raise ValueError(f"{name!r} is not a valid name of a label")


def gauge(name: str, about: str, values: Values) -> MetricFamily:
    """Return a Cotswold metric that can grow and shrink."""
    return MetricFamily(f"cotswold_{name}", "gauge", about, values)


def counter(name: str, about: str, values: Values) -> MetricFamily:
    """Return a Cotswold metric that only grows."""
    return MetricFamily(f"cotswold_{name}", "counter", about, values)


def exposition(families: Iterable[MetricFamily]) -> str:
    """Return the text of metrics; those without values are omitted.

    >>> cpu = MetricFamily("cpu_total", "counter", "Seconds.", [({"mode": "user"}, 1.5)])
    >>> print(exposition([cpu]), end="")
    # HELP cpu_total Seconds.
    # TYPE cpu_total counter
    cpu_total{mode="user"} 1.5
    """
    lines: list[str] = []
    for each in families:
        if each.values:
            lines.append(f"# HELP {each.name} {_escaped(each.help)}")
            lines.append(f"# TYPE {each.name} {each.kind}")
            lines += [f"{each.name}{_labels(labels)} {_value(value)}" for labels, value in each.values]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    inside = ",".join(f'{name}="{_escaped(value, quotes=True)}"' for name, value in labels.items())
    return f"{{{inside}}}" if inside else ""


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text


def _value(value: float) -> str:
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if value == int(value) and abs(value) < 1 << 53 else repr(float(value))

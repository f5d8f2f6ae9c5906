"""Reads figures from files of benchmarks/results, in the words of the pages.

Knows: the layouts of results, rounding. Does not know: pages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"
LOADERS = ("data servers", "torch DataLoader", "Ray Data", "tf.data service")
CHOSEN = "reduce: chosen (chain over hosts)"
TREE = "reduce: binomial tree over all ranks, whole vectors (LAM)"


@cache
def result(name: str) -> Any:
    """Return the contents of a file of results."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def processor(name: str) -> str | None:
    """Return the processor of a result as pages call it; None for simulations."""
    data = result(name)
    found = data.get("processor") or data.get("machine", {}).get("processor")
    return {None: None, "AMD EPYC": "AMD", "Intel(R) Xeon(R) Processor": "Intel"}[found]


def by(rows: Iterable[Any], **wanted: object) -> Any:
    """Return the first row with these values."""
    return next(row for row in rows if all(row[key] == value for key, value in wanted.items()))


def rounded(values: Iterable[float], digits: int) -> list[str]:
    """Return numbers with this number of digits after the point."""
    return [f"{value:.{digits}f}" for value in values]


def span(values: Sequence[float], digits: int) -> list[str]:
    """Return the least and the greatest value."""
    return rounded((min(values), max(values)), digits)


def median(row: Any, against: str = "") -> float:
    """Return the median ratio of a row to what it is compared with; by default to the first."""
    found = [each["ratio"]["median"] for each in row["verdicts"] if against in ("", each["against"])]
    return float(found[0])


def ratios(data: Any, group: str, operation: str, threads: int | None = None) -> list[float]:
    """Return the medians of the first comparison of each row of a group."""
    rows = [row for row in data["rows"] if row["group"] == group and row["operation"] == operation]
    return [median(row) for row in rows if threads in (None, row.get("threads"))]


def target(data: Any, group: str, operation: str) -> str:
    """Return the only target of an operation of a group."""
    rows = [row for row in data["rows"] if row["group"] == group and row["operation"] == operation]
    (bar,) = {row["verdicts"][0]["bar"] for row in rows} - {None}
    return f"{bar:g}"


def met(data: Any, group: str, start: str, against: str) -> int:
    """Return the number of rows of a group that meet their target."""
    rows = [row for row in data["rows"] if row["group"] == group and row["operation"].startswith(start)]
    return sum(each["met"] is True for row in rows for each in row["verdicts"] if each["against"] == against)


def untied(data: Any, operation: str, *threads: int) -> list[str]:
    """Return the spans of untied layers compared with the better baseline, by numbers of threads."""
    return [each for one in threads for each in span(ratios(data, "untied", operation, one), 1)]


def memory(data: Any) -> list[float]:
    """Return extra memory of untied layers, as fractions of that of unfold."""
    rows = [row for row in data["rows"] if row["group"] == "memory"]
    return [median(row) for row in rows if row["verdicts"][0]["against"] == "unfold + einsum"]


def paper(data: Any, operation: str, threads: int) -> list[float]:
    """Return an operation of the paper's stacks compared with the fastest dense product."""
    return ratios(data, "paper", operation, threads)


def bunyip(data: Any, images: int, threads: int, against: str = "") -> float:
    """Return a ratio of value and gradient of Bunyip's network."""
    rows = [row for row in data["rows"] if row["operation"] == "value and gradient"]
    return median(by(rows, images=images, threads=threads), against)


def lbfgs(data: Any) -> list[float]:
    """Return evaluations of L-BFGS compared with SciPy's, problem by problem."""
    rows = [row for row in data["rows"] if row["method"] == "L-BFGS, strong Wolfe"]
    return [float(row["ratio"]) for row in rows if row["ratio"] is not None]


def reduced(data: Any, order: str, row: str) -> float:
    """Return the median seconds of a reduction."""
    return float(data[order]["rows"][row]["median"])


def fed(data: Any, subject: str) -> list[str]:
    """Return samples per second of the four loaders."""
    rows = [by(data["summary"]["rows"], subject=subject, who=who) for who in LOADERS]
    return [f"{row['samples_a_second']['median']:,.0f}" for row in rows]


def percent_of(data: Any, what: str) -> list[str]:
    """Return the target and the figure of data servers, in percent."""
    row = next(row for row in data["summary"]["bars"] if row["what"].startswith(what))
    return [f"{100 * float(row['bar'].split()[-1]):g}", f"{100 * row['median']:.2g}"]


def fires(data: Any) -> tuple[float, float]:
    """Return samples per second with faults and without."""
    found = {each["is_fire"]: float(each["samples_a_second"]) for each in data["trainings"]}
    return found[True], found[False]


def counts(data: Any, what: str) -> list[str]:
    """Return the numbers in the verdict of an audit, in their order."""
    return re.findall(r"[\d,]*\d", by(data["verdicts"], what=what)["found"])


def copies(data: Any, kilobytes: str, number: int, against: str) -> str:
    """Return processor time of copies compared with another number of copies."""
    rows = [row for row in data["rows"] if row["group"] == "copies" and row["shape"].endswith(kilobytes)]
    row = next(row for row in rows if row["facts"]["copies"] == number)
    return f"{median(row, f'{against}: processor time'):.2f}"


def copy_costs(data: Any, kilobytes: str) -> list[str]:
    """Return processor time of one copy compared with none, and of three compared with one."""
    return [copies(data, kilobytes, 1, "no copies"), copies(data, kilobytes, 3, "1 copy")]


def persisted(data: Any, copies: str) -> list[str]:
    """Return the speed with disks, compared with that without, for a number of copies."""
    return rounded([data["summary"][copies]["ratio"]["median"]], 2)


def killed(data: Any, way: str) -> list[str]:
    """Return evaluations per second while workers are killed, compared with those without kills."""
    return rounded([data["cases"][f"killed, {way}"]["ratio"]], 2)


def links(data: Any, way: str) -> str:
    """Return pushes with three copies over slow links, compared with one copy."""
    row = next(row for row in data["rows"] if row["operation"] == f"pushes, 3 copies by {way}")
    return f"{median(row):.2f}"


def seconds(data: Any, shape: str) -> str:
    """Return the median seconds until pushes count again."""
    return f"{by(data['rows'], group='failover', shape=shape)['figures']['cotswold']['median']:.2f}"


def stale(data: Any, replicas: int) -> list[str]:
    """Return the test accuracies of the rules with a number of replicas, in percent."""
    return rounded((100 * row["test"] for row in data["summary"]["rows"] if row["replicas"] == replicas), 1)


def staleness(data: Any, replicas: int) -> list[str]:
    """Return the mean staleness with a number of replicas, by SGD."""
    return rounded([by(data["summary"]["rows"], replicas=replicas, rule="sgd")["staleness"]], 1)


def adam(data: Any, replicas: int) -> list[str]:
    """Return staleness and accuracy of replicas on MNIST, and the difference to one replica."""
    row = by(data["summary"]["rows"], case="mnist", replicas=replicas)
    found = [f"{row['staleness']:.1f}", f"{100 * row['test']:.2f}"]
    for each in data["summary"]["compared"]:
        if each["replicas"] == replicas:
            found += rounded((each["points"], each["low"], each["high"]), 2)
    return found


def largest(data: Any) -> list[str]:
    """Return weights in millions and memory of the largest asynchronous network."""
    row = max(data["summary"]["rows"], key=lambda each: each["parameters"])
    return [f"{row['parameters'] / 1e6:.0f}", f"{row['peak_bytes'] / 1e9:.1f}"]


def offloaded(data: Any) -> list[str]:
    """Return weights and seconds of an update of the largest stack on disk."""
    return [f"{data['parameters']:,}", f"{data['update_seconds']['median']:.0f}"]


def predicted(data: Any, stated: str) -> list[str]:
    """Return the numbers that a simulation predicts for a sentence of a paper."""
    row = next(row for row in data["words"] if row["the paper"].startswith(stated))
    return re.findall(r"\d+\.?\d*", row["predicted"])


def learnt(data: Any, way: str) -> str:
    """Return the held-out accuracy of a way to get filters, in percent."""
    return f"{100 * by(data['summary']['rows'], way=way)['test']:.1f}"


def error(data: Any, method: str, loss: str) -> str:
    """Return the validation error of a cell of Bunyip's table, in percent."""
    return f"{100 * by(data['cells'], method=method, loss=loss)['best']['errors']:.1f}"


def billions(data: Any, operation: str) -> float:
    """Return billions of updates per second of one server."""
    return float(by(data["rows"], operation=operation)["figures"]["cotswold"]["median"])

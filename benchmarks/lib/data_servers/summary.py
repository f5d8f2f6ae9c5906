"""Summary of the cells of the data servers' benchmark.

Knows: names of cells, bars. Does not know: how a cell is measured or plotted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from cotswold.bench.measure import Document, Spread, rounded
from lib.cells import number
from lib.data_servers.subject import ALONE, OURS

WAITED_MOST = 0.02
OVER_MOST = 0.10
"""Largest processor time relative to the transforms alone, minus 1."""
COPY_MOST = 1.0
"""Largest time of a hit relative to a copy of the same bytes."""
KILLED_LEAST = 0.95
_FIGURES = ("samples_a_second", "samples_a_core_second", "memory_mib", "waited")
Cells = Mapping[str, Document]


def of(cells: Cells, *begin: str) -> dict[str, Document]:
    """Return the cells whose names begin with ``begin``, by the rest of their names."""
    head = "".join(f"{each}: " for each in begin)
    return {name.removeprefix(head): cell for name, cell in cells.items() if name.startswith(head)}


def best_workers(cells: Cells, subject: str, who: str) -> int | None:
    """Return the number of workers with the highest rate, or None if it was not tried."""
    tried = [cell for cell in of(cells, "tune", subject).values() if cell["who"] == who]
    if not tried:
        return None
    return round(number(max(tried, key=lambda cell: number(cell, "samples_a_second")), "workers"))


def median_rate(cells: Cells, subject: str, who: str) -> float | None:
    """Return the median of samples per second at the best number of workers."""
    found = [number(each, "samples_a_second") for each in _rounds(cells, "fed", subject, who)]
    return median(found) if found else None


def single_rate(cells: Cells, subject: str) -> float:
    """Return samples per second of one data server."""
    return number(cells[f"tune: {subject}: {OURS}: 1"], "samples_a_second")


def summary(cells: Cells) -> Document:
    """Return the rows of the tables, and whether each bar is met."""
    names = list(dict.fromkeys(name.split(": ")[1] for name in cells if name.startswith("fed: ")))
    rows = [row for name in names for row in _rows(cells, name)]
    return {
        "rows": rows,
        "cache": [_cache(cells, name) for name in names if of(cells, "cache", name)],
        "killed": [row for name in names for row in _killed(cells, name)],
        "bars": _bars(cells, names),
    }


def _rows(cells: Cells, subject: str) -> list[Document]:
    found = []
    for who in dict.fromkeys(str(cell["who"]) for cell in of(cells, "fed", subject).values()):
        fed = _rounds(cells, "fed", subject, who)
        starving = _rounds(cells, "starving", subject, who)
        row: Document = {
            "subject": subject,
            "who": who,
            "transform": fed[0]["transform"],
            "workers": fed[0]["workers"],
        }
        for name in _FIGURES[:3]:
            row[name] = Spread.from_samples([number(each, name) for each in fed]).as_dict()
        row["waited_at_1_2"] = (
            Spread.from_samples([number(each, "waited") for each in starving]).as_dict() if starving else None
        )
        found.append(row)
    return found


def _cache(cells: Cells, subject: str) -> Document:
    found = [*of(cells, "cache", subject).values()]
    words = ("hit_microseconds", "rows_taken_microseconds", "copy_microseconds", "hit_of_copy", "of_bound")
    return {
        "subject": subject,
        "bytes": found[0]["bytes"],
        **{each: rounded(median(number(cell, each) for cell in found)) for each in words},
    }


def _killed(cells: Cells, subject: str) -> list[Document]:
    return [
        {
            "subject": subject,
            "killed_every": every,
            "rounds": len(found),
            "samples_a_second": rounded(median(number(cell, "samples_a_second") for cell in found)),
            "waited": rounded(median(number(cell, "waited") for cell in found)),
            **{
                each: round(sum(number(cell, each) for cell in found))
                for each in ("killed", "samples", "twice", "lost", "strange")
            },
        }
        for every in ("0", "20")
        if (found := [*of(cells, "killed", subject, every).values()])
    ]


def _rounds(cells: Cells, kind: str, subject: str, who: str) -> list[Document]:
    return [cell for cell in of(cells, kind, subject).values() if cell["who"] == who]


def _bars(cells: Cells, subjects: Sequence[str]) -> list[Document]:
    found: list[Document] = []
    for subject in subjects:
        over = _over(cells, subject)
        if over:
            found.append(
                _bar(f"{subject}: processor time beyond the transforms alone", over, OVER_MOST, True)
            )
        starving = _rounds(cells, "starving", subject, OURS)
        if starving:
            waits = [number(each, "waited") for each in starving]
            what = "waiting time of a trainer at 1/1.2 of the rate, including the time to take a batch"
            found.append(_bar(f"{subject}: {what}", waits, WAITED_MOST, True))
        cache = [*of(cells, "cache", subject).values()]
        if cache:
            copies = [number(each, "hit_of_copy") for each in cache]
            bounds = [number(each, "of_bound") for each in cache]
            found.append(_bar(f"{subject}: peak size of the cache over its bound", bounds, 1.0, True))
            found.append(_bar(f"{subject}: time of a hit over that of a copy", copies, COPY_MOST, True))
        killed, quiet = (of(cells, "killed", subject, every) for every in ("20", "0"))
        both = [name for name in killed if name in quiet]
        if both:
            rate = "samples_a_second"
            kept = [number(killed[each], rate) / number(quiet[each], rate) for each in both]
            wrong = [
                number(cell, each)
                for cell in (*killed.values(), *quiet.values())
                for each in ("twice", "lost", "strange")
            ]
            found.append(_bar(f"{subject}: training rate with kills over without", kept, KILLED_LEAST, False))
            found.append(_bar(f"{subject}: duplicated, lost or invalid samples", [sum(wrong)], 0.0, True))
    return found


def _over(cells: Cells, subject: str) -> list[float]:
    """Return the excess of processor time, round by round."""
    fed = of(cells, "fed", subject)
    rounds = sorted({name.rpartition(": ")[2] for name in fed})
    pairs = [(fed.get(f"{OURS}: {each}"), fed.get(f"{ALONE}: {each}")) for each in rounds]
    return [
        number(alone, "samples_a_core_second") / number(ours, "samples_a_core_second") - 1
        for ours, alone in pairs
        if ours is not None and alone is not None
    ]


def _bar(what: str, values: Sequence[float], bar: float, is_most: bool) -> Document:
    middle = median(values)
    return {
        "what": what,
        "median": rounded(middle),
        "least": rounded(min(values)),
        "greatest": rounded(max(values)),
        "bar": f"{'at most' if is_most else 'at least'} {bar:g}",
        "met": middle <= bar if is_most else middle >= bar,
    }

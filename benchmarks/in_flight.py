"""Ranks of a grid with slow messages: one micro-batch in flight, compared with several.

Knows: the command's options, tables, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path

from cotswold.bench.measure import document
from cotswold.cli.support.tables import require_positive, write_result
from lib.command import Json, command, main, spreads
from lib.in_flight import Subject, measured


def in_flight(
    *,
    grid: str = "1x2",
    rate: str = "100mbit",
    images: int = 100,
    rounds: int = 9,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure images per second and idle time of adam-mnist's layers on ranks on separate hosts with slow
    links.

    The hosts are network namespaces, which need root and `ip` and `tc` (Debian's iproute2).

    Example: python benchmarks/in_flight.py --rate 100mbit

    Parameters
    ----------
    grid
        Rows and columns of ranks.
    rate
        Rate of each host's link.
    images
        Images in a batch, which is divided into 1, 2 and 4 micro-batches.
    rounds
        Number of batches for each.
    out
        Directory for in_flight.json.
    json_
        Print JSON.
    """
    subject = Subject(grid, rate, require_positive(images, "--images"), require_positive(rounds, "--rounds"))
    found = document("in_flight", command(), grid=grid, rate=rate, **measured(subject, (1, 2, 4)))
    write_result(found, "in_flight", out, json_)
    if json_:
        return
    spreads("images per second, by micro-batches in flight", found["spread_images_a_second"])
    for name, share in dict(found["idle"]).items():  # type: ignore[call-overload]  # a table of JSON
        print(f"idle with {name}: {share}")


if __name__ == "__main__":
    main(in_flight)

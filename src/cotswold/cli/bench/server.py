"""`cotswold bench server`: what a parameter server does, beside its limits and bars.

Knows: the words of the command, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.bench.kernels import print_rows
from cotswold.cli.support.tables import command, leave, ready, thread_counts, write

Flag = Annotated[bool, Parameter(negative=())]
Json = Annotated[bool, Parameter(name="--json", negative=())]
Only = Annotated[list[str] | None, Parameter(negative=())]


def server(
    *,
    threads: str | None = None,
    only: Only = None,
    match: str = "",
    quick: Flag = False,
    trace: Path | None = None,
    copies: str | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """What a parameter server does, beside what memory and products allow.

    Applying 1, 4 and 16 queued pushes to shards of 16 KB, 1 MB and 64 MB, by every rule,
    beside y += x and beside what memory allows for just these reads and writes; gradients
    that come as factors of 1 to 512 examples beside the lesser of the fastest dense product
    and memory; shards a second through the whole queue of a server; pushes to and pulls
    from a server's process beside raw ZeroMQ frames over the same kind of socket, and
    beside memcpy; how many replicas of adam-mnist one server process serves; what a push
    costs servers that keep 1 to 5 copies; how many they take, and answer pulls, on links of
    200 Mb/s, by star and by chain, beside one copy (hosts are network namespaces: root and
    iproute2 are needed, and a row says so where they lack); how long a push waits where a
    server dies. Each row with a bar says whether it is met.

    Examples:

      cotswold bench server --quick

      cotswold bench server --only apply,factors --match adagrad

      cotswold bench server --only push --only pull --match "shared memory"

      cotswold bench server --only replicas --out .

      cotswold bench server --copies 1..5 --only failover

      cotswold bench server --only links --out .

      cotswold bench server --trace runs/mine --out .

      cotswold bench server --threads 1,2 --out benchmarks/results

    Parameters
    ----------
    threads
        Numbers of threads, one run each, as in 1,2; all cores by default.
    only
        A group: apply, drain, factors, push, pull, replicas, copies, links,
        failover; several with commas between, or given again.
    match
        Only what has this text in its name.
    quick
        Small shards, few rounds: to try the command, not to quote.
    trace
        A run with training.record_traffic: what its replicas sent is replayed against
        real servers, at its own speed and as fast as can be; updates of weights a second
        by deltas and by factors on 1 and 2 servers, and simulated on more.
    copies
        How many copies servers keep, as in 1..5 or 1,3: groups copies and links; nothing
        else is measured then but what --only names.
    out
        A directory for server.json (every sample; of a trace server-trace.json, with
        --copies server-copies.json) and
        pictures (server*.svg).
    json_
        Print JSON.
    """
    from cotswold.bench import measure_server
    from cotswold.ui.progress import say

    counts = thread_counts(threads)
    ready(out)
    file = "server-trace" if trace is not None else "server-copies" if copies is not None else "server"
    found = measure_server(
        threads=counts,
        only=only or [],
        match=match,
        quick=quick,
        trace=trace,
        copies=numbers_of(copies),
        command=command(),
        say=say,
        leave=lambda so_far: write(so_far, file, out),
    )
    leave(found, file, out, json_)
    if out is not None:
        from cotswold.bench.server.picture import PICTURES

        for name, draw in PICTURES.items():
            draw(found, out / name)
    if not json_:
        print_rows(found)


def numbers_of(words: str | None) -> list[int]:
    """Numbers from words such as 1..5 or 1,3; raises UserError for others.

    >>> numbers_of("1..3"), numbers_of("1,4"), numbers_of(None)
    ([1, 2, 3], [1, 4], [])
    """
    from cotswold.errors import UserError

    if words is None:
        return []
    first, dots, last = words.partition("..")
    numbers = (first, last) if dots else tuple(words.split(","))
    if not all(number.strip().isdecimal() for number in numbers) or (dots and int(first) > int(last)):
        raise UserError(f"--copies {words} names no numbers; write them as in 1..5 or 1,3")
    return list(range(int(first), int(last) + 1)) if dots else [int(number) for number in numbers]

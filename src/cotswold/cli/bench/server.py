"""`cotswold bench server`: performance of a parameter server, compared with limits and targets.

Knows: the arguments of the command, where results go. Does not know: how anything is measured.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cotswold.cli.bench.kernels import print_rows
from cotswold.cli.support.json_output import Json
from cotswold.cli.support.number_lists import numbers_of
from cotswold.cli.support.tables import command, create_result_folder, thread_counts, write, write_result

Flag = Annotated[bool, Parameter(negative=())]
GroupNames = Annotated[list[str] | None, Parameter(negative=())]


def server(
    *,
    threads: str | None = None,
    only: GroupNames = None,
    match: str = "",
    quick: Flag = False,
    trace: Path | None = None,
    copies: str | None = None,
    out: Path | None = None,
    json_: Json = False,
) -> None:
    """Measure a parameter server, compared with the limits of memory and products.

    Groups: apply: 1, 4 and 16 queued pushes to shards of 16 KB, 1 MB and 64 MB, by every
    rule, compared with y += x and with the memory bandwidth for these reads and writes.
    factors: gradients sent as factors of 1 to 512 samples, compared with the fastest dense
    product and memory. drain: shards per second through a server's whole queue. push, pull:
    requests to a server process, compared with raw ZeroMQ frames over the same kind of
    socket and with memcpy. replicas: replicas of adam-mnist that one server process
    sustains. copies: cost of a push to servers with 1 to 5 copies. links: updates and pulls
    per second on links of 200 Mb/s, by star and by chain, compared with one copy (hosts are
    network namespaces, which need root and iproute2; a row says if they are missing).
    failover: delay of a push when a server dies. Rows with a target say whether it is met.

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
        Numbers of threads, one run each, as in 1,2. Default: all cores.
    only
        A group: apply, drain, factors, push, pull, replicas, copies, links,
        failover; several separated by commas, or given again.
    match
        Only names that contain this text.
    quick
        Small shards, few rounds: to try the command, not for results.
    trace
        A run with training.record_traffic: replay the requests of its replicas against real
        servers, at the original speed and as fast as possible. Shows weight updates per second
        by deltas and by factors on 1 and 2 servers, and simulated on more.
    copies
        Numbers of copies, as in 1..5 or 1,3: measures groups copies and links, and any
        group that --only names.
    out
        A directory for server.json (every sample; with --trace server-trace.json, with
        --copies server-copies.json) and figures (server*.svg).
    json_
        Print JSON.
    """
    from cotswold.bench import measure_server
    from cotswold.ui.terminal import write_note

    counts = thread_counts(threads)
    create_result_folder(out)
    file = "server-trace" if trace is not None else "server-copies" if copies is not None else "server"
    found = measure_server(
        threads=counts,
        only=only or [],
        match=match,
        quick=quick,
        trace=trace,
        copies=numbers_of(copies, "--copies must be numbers, as in 1..5 or 1,3"),
        command=command(),
        say=write_note,
        write=lambda so_far: write(so_far, file, out),
    )
    write_result(found, file, out, json_)
    if out is not None:
        from cotswold.bench.server.plots import PLOTS

        for name, draw in PLOTS.items():
            draw(found, out / name)
    if not json_:
        print_rows(found)

"""`cotswold cluster status`, `explain`, `drain` and `remove`: commands for the operator of a cluster.

Knows: the arguments of the commands, text tables. Does not know: how a cluster is queried.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from cotswold.cli.cluster.tables import EVENTS, explaining, lines_of
from cotswold.cli.support.json_output import Json, print_json

if TYPE_CHECKING:
    from cotswold.replication.client.admin import AdminClient

Flag = Annotated[bool, Parameter(negative=())]
CONTROLLERS = "127.0.0.1:7400"


def status(
    *,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
    events: int = EVENTS,
    watch: Flag = False,
    json_: Json = False,
) -> None:
    """Show the servers of a cluster, their buckets and disks, the runs, and the latest events.

    Examples:

      cotswold cluster status --token-file token
      cotswold cluster status --controllers 10.0.0.1,10.0.0.2,10.0.0.3 --watch
      cotswold cluster status --events 200

    Parameters
    ----------
    controllers
        HOST or HOST:PORT of the controllers, separated by commas; default port 7400.
    token_file
        The file with the cluster's secret. Default: COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN.
    events
        Number of latest events to show, of the 200 that controllers keep; events.jsonl in the folder of a
        host has all.
    watch
        Refresh every second, until Ctrl-C, with as many of the latest events as fit on the screen.
    json_
        Print JSON.
    """
    from cotswold.api.servers.cluster_admin import overview, to_plain_values
    from cotswold.errors import UserError
    from cotswold.ui.screen import Screen, refresh

    _check_events(events)
    if watch and json_:
        raise UserError("--watch shows tables; for JSON repeat the command with --json alone")
    with operator_of(controllers, token_file) as operator:
        if watch:
            refresh(lambda screen: lines_of(overview(operator), events, screen))
            return
        found = overview(operator)
        if json_:
            print_json("cluster.status", to_plain_values(found))
        else:
            print(*lines_of(found, events, Screen(None, Screen.of_terminal().columns)), sep="\n")


def explain(
    bucket: str | None = None,
    *,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
    events: int = EVENTS,
    json_: Json = False,
) -> None:
    """Show the copies of a bucket, their state, and what the bucket waits for; by default list all buckets.

    Examples:

      cotswold cluster explain
      cotswold cluster explain 17
      cotswold cluster explain c83a/17

    Parameters
    ----------
    bucket
        RUN/NUMBER; the run may be omitted or abbreviated if unambiguous. Numbers may start above 0: buckets
        without parameters are left out.
    controllers
        HOST or HOST:PORT of the controllers, separated by commas.
    token_file
        The file with the cluster's secret. Default: COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN.
    events
        Number of latest events of the bucket to show.
    json_
        Print JSON.
    """
    from cotswold.api.servers.cluster_admin import explained, to_plain_values

    _check_events(events)
    with operator_of(controllers, token_file) as operator:
        if bucket is None:
            names = sorted(operator.groups())
            if json_:
                print_json("cluster.buckets", {"buckets": names})
            else:
                print("\n".join(names) or "the cluster has no run")
            return
        found = explained(operator, bucket)
    if json_:
        print_json("cluster.explain", to_plain_values(found))
    else:
        print(*explaining(found, events), sep="\n")


def drain(
    server: str,
    *,
    within: float = 30.0,
    back: Flag = False,
    lost: Flag = False,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
) -> int:
    """Drain a server: other servers take over its copies, then its process ends.

    The host's supervisor does not restart the process, not even after a restart of the
    host, until --back returns the server to service. If copies remain after the time
    limit, the drain continues. SIGTERM to `cotswold cluster start` and `add` drains all
    servers of the host, for at most 25 s; these return with the host. Exit code 0: no
    copy remains; 1: some copies remained at the time limit.

    Examples:

      cotswold cluster drain server-10-0-0-2-0 --within 30
      cotswold cluster drain server-10-0-0-2-0 --back
      cotswold cluster drain server-10-0-0-2-0 --lost

    Parameters
    ----------
    server
        The server's name in `cotswold cluster status`; the number after the dot may be omitted.
    within
        Time limit in seconds; near its end, buckets may have one copy less for a while.
    back
        Return the server to service: its host starts it, and it receives copies again.
    lost
        Declare a silent server and its disk permanently lost: buckets that wait for it
        continue with the other copies, and data that only it had are lost.
    controllers
        HOST or HOST:PORT of the controllers, separated by commas.
    token_file
        The file with the cluster's secret. Default: COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN.
    """
    from cotswold.errors import UserError
    from cotswold.phrases import counted
    from cotswold.ui.terminal import print_result, show_stages, write_message

    if within <= 0:
        raise UserError(f"--within must be above 0 seconds, got {within:g}")
    if lost and back:
        raise UserError("--lost and --back exclude each other: a lost server does not return")
    with operator_of(controllers, token_file) as operator:
        if lost:
            print_result(f"{operator.declare_lost(server)} is declared lost")
            return 0
        if back:
            print_result(
                f"{operator.undrain(server)} is back in service: it receives copies once its process runs"
            )
            return 0
        left, why = 0, ""
        with show_stages() as show:
            for found in operator.drain(server, within):
                left, why = found.left, found.why
                show(f"{found.server}: {counted(left, 'copy')} left" + (f"; {why}" if why else ""), 0)
    if left:
        write_message(f"{server} still has {counted(left, 'copy')} after {within:g} s: {why}")
        return 1
    print_result(
        f"{server} has no copies left: its host ends its process, and does not restart it until "
        f"`cotswold cluster drain {server} --back`"
    )
    return 0


def remove(
    run: str,
    *,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
) -> None:
    """Delete a run from a cluster after the run ended without doing so.

    A run that finishes deletes its parameters from the cluster; a killed run does not,
    unless it is resumed. A run that still trains ends by this command, without saving.

    Examples:

      cotswold cluster remove c83a0b833eac6e20

    Parameters
    ----------
    run
        The run's name in `cotswold cluster status`; an unambiguous prefix is enough.
    controllers
        HOST or HOST:PORT of the controllers, separated by commas.
    token_file
        The file with the cluster's secret. Default: COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN.
    """
    from cotswold.api.servers.cluster_admin import run_meant
    from cotswold.ui.terminal import print_result

    with operator_of(controllers, token_file) as operator:
        meant = run_meant(operator, run)
        operator.remove(meant)
    print_result(f"deleted {meant} from the cluster")


def _check_events(events: int) -> None:
    from cotswold.errors import UserError

    if events < 0:
        raise UserError(f"--events must be 0 or more, got {events}")


def operator_of(controllers: str, token_file: Path | None) -> AdminClient:
    """Return a client for operators."""
    from cotswold.api.servers.cluster_admin import operator

    return operator(controllers, token_file)

"""`cotswold cluster status`, `explain`, `drain` and `remove`: a cluster as whoever operates it sees it.

Knows: the words of the commands, tables of text. Does not know: how a cluster is asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

if TYPE_CHECKING:
    from cotswold.replication.client.admin import Operator

Json = Annotated[bool, Parameter(name="--json", negative=())]
Flag = Annotated[bool, Parameter(negative=())]
CONTROLLERS = "127.0.0.1:7400"
EVENTS = 20
"""The last so many are shown, where nothing is said."""


def status(
    *,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
    events: int = EVENTS,
    watch: Flag = False,
    json_: Json = False,
) -> None:
    """Show the servers of a cluster, what each leads and has on disk, its runs, and what happened last.

    Examples:

      cotswold cluster status --token-file token
      cotswold cluster status --controllers 10.0.0.1,10.0.0.2,10.0.0.3 --watch
      cotswold cluster status --events 200

    Parameters
    ----------
    controllers
        HOST or HOST:PORT of the controllers, with commas; port 7400 where none is said.
    token_file
        The file with the cluster's secret; that in COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN by default.
    events
        How many of the last events are shown, of the 200 that controllers keep; events.jsonl in the folder of
        a host has all.
    watch
        Show it anew every second, until Ctrl-C, with as many of the last events as there is room for.
    json_
        Print JSON.
    """
    from cotswold.api.servers.cluster_admin import in_json, overview
    from cotswold.cli.cluster.tables import lines_of
    from cotswold.errors import UserError
    from cotswold.ui.screen import watching

    _check_events(events)
    if watch and json_:
        raise UserError("--watch shows tables; for JSON ask with --json alone, as often as you like")
    with operator_of(controllers, token_file) as operator:
        if watch:
            watching(lambda screen: lines_of(overview(operator), events, screen))
            return
        found = overview(operator)
        if json_:
            print(json.dumps(in_json(found)))
        else:
            print(*lines_of(found, events), sep="\n")


def explain(
    bucket: str | None = None,
    *,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
    events: int = EVENTS,
    json_: Json = False,
) -> None:
    """Say who has copies of a bucket, what each has, and what it waits for; without one, name all buckets.

    Examples:

      cotswold cluster explain
      cotswold cluster explain 17
      cotswold cluster explain c83a/17

    Parameters
    ----------
    bucket
        RUN/NUMBER, of which the run may be left out or cut short where no other is meant. Numbers need not
        begin at 0: buckets without parameters are left out.
    controllers
        HOST or HOST:PORT of the controllers, with commas.
    token_file
        The file with the cluster's secret; that in COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN by default.
    events
        How many of the last events of the bucket are shown.
    json_
        Print JSON.
    """
    from cotswold.api.servers.cluster_admin import explained, in_json
    from cotswold.cli.cluster.tables import explaining

    _check_events(events)
    with operator_of(controllers, token_file) as operator:
        if bucket is None:
            names = sorted(operator.groups())
            print(json.dumps(names) if json_ else "\n".join(names) or "the cluster has no run")
            return
        found = explained(operator, bucket)
    if json_:
        print(json.dumps(in_json(found)))
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
    """Take a server away: other servers take over its copies, then its process ends.

    The supervisor of its host starts no other process in its place, also after a restart
    of the host, until --back takes the server back. If the time is over and something is
    left, the drain goes on. SIGTERM to `cotswold cluster start` and `add` drains all
    servers of the host, for 25 s at most; these come back with the host. Exit code 0:
    nothing is left; 1: something was left when the time was over.

    Examples:

      cotswold cluster drain server-10-0-0-2-0 --within 30
      cotswold cluster drain server-10-0-0-2-0 --back
      cotswold cluster drain server-10-0-0-2-0 --lost

    Parameters
    ----------
    server
        The server's name, as `cotswold cluster status` has it; the number behind its point may be left out.
    within
        Seconds that it may take; towards their end buckets may have a copy less for a while.
    back
        Take the server back: its host starts it, and it gets copies again.
    lost
        Say of a server that is silent that it never comes back, nor does its disk: buckets that
        wait for it go on with what others have, and what it alone had is lost.
    controllers
        HOST or HOST:PORT of the controllers, with commas.
    token_file
        The file with the cluster's secret; that in COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN by default.
    """
    from cotswold.errors import UserError
    from cotswold.ui.progress import say, stages
    from cotswold.words import counted

    if within <= 0:
        raise UserError(f"--within {within:g}: give seconds, more than 0")
    if lost and back:
        raise UserError("--lost and --back: a server that is given up does not come back")
    with operator_of(controllers, token_file) as operator:
        if lost:
            say(f"{operator.give_up(server)} is given up")
            return 0
        if back:
            say(f"{operator.undrain(server)} is taken back: it gets copies again, once its process is there")
            return 0
        left, why = 0, ""
        with stages() as show:
            for found in operator.drain(server, within):
                left, why = found.left, found.why
                show(f"{found.server}: {counted(left, 'copy')} left" + (f"; {why}" if why else ""), 0)
    if left:
        say(f"{server} still has {counted(left, 'copy')} after {within:g} s: {why}")
        return 1
    say(
        f"{server} has no copies any more: its host ends its process, and starts none in its place until "
        f"`cotswold cluster drain {server} --back`"
    )
    return 0


def remove(
    run: str,
    *,
    controllers: str = CONTROLLERS,
    token_file: Path | None = None,
) -> None:
    """Have a cluster forget what it has of a run that is over, and could not say so.

    A run that ends has its parameters forgotten by itself; one that was killed has not,
    until it is resumed. One that still trains ends by this, unsaved.

    Examples:

      cotswold cluster remove c83a0b833eac6e20

    Parameters
    ----------
    run
        As `cotswold cluster status` names it; the first letters are enough where no other has them.
    controllers
        HOST or HOST:PORT of the controllers, with commas.
    token_file
        The file with the cluster's secret; that in COTSWOLD_CLUSTER_TOKEN_FILE, COTSWOLD_CLUSTER_TOKEN or
        COTSWOLD_TOKEN by default.
    """
    from cotswold.api.servers.cluster_admin import run_meant
    from cotswold.ui.progress import say

    with operator_of(controllers, token_file) as operator:
        meant = run_meant(operator, run)
        operator.remove(meant)
    say(f"the cluster has nothing of {meant} any more")


def _check_events(events: int) -> None:
    from cotswold.errors import UserError

    if events < 0:
        raise UserError(f"--events {events}: give how many of the last events are to be shown, 0 or more")


def operator_of(controllers: str, token_file: Path | None) -> Operator:
    """Whoever gives these commands."""
    from cotswold.api.servers.cluster_admin import operator

    return operator(controllers, token_file)

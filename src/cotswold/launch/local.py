"""Run several ranks on this host: start them, give them a token, restart them after a death.

Knows: arguments and environments of processes. Does not know: torch, what the ranks do.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from cotswold.errors import UserError
from cotswold.host.child_process import Child
from cotswold.host.token import rank_environment
from cotswold.launch import rank_log
from cotswold.launch.logs import Logs
from cotswold.launch.rank_group import RankGroup, print_message
from cotswold.launch.signals import SignalRequests
from cotswold.launch.world import LOOPBACK, World, settings_of

PROGRAM = (sys.executable, "-m", "cotswold.cli.main")


def run_local(
    words: Sequence[str],
    ranks: int,
    logs: Path,
    *,
    cores: int,
    restarts: int = 0,
    restart_words: Sequence[str] | None = None,
    program: Sequence[str] = PROGRAM,
    environ: Mapping[str, str] = os.environ,
    ended: Callable[[Path], None] | None = None,
) -> int:
    """Run ``program`` with ``words`` as ``ranks`` ranks on this host, and return the command's exit code.

    SIGINT, SIGTERM and SIGHUP are passed on to all ranks once; a second signal ends all of them. SIGTSTP
    (Ctrl-Z) suspends all ranks until this process resumes. If one rank dies, the others end too: by
    themselves, or after some seconds by SIGTERM and SIGKILL. If this process dies, the ranks are killed.

    Args:
        words: Arguments of ``program``.
        ranks: Number of ranks.
        logs: Folder of the log files, inside a run's directory that need not exist yet. Rank 0 prints on the
            terminal, and its messages are also logged. Rank K prints into rank-K.log.
        cores: Number of CPU cores to divide among the ranks.
        restarts: Maximum number of restarts after a death; a signal prevents further restarts.
        restart_words: Arguments of ``program`` for a restart (default: ``words``).
        program: The command to run.
        environ: Environment of the ranks.
        ended: Called with the folder of the logs when no rank runs any more. Without a run's directory the
            folder is removed afterwards.

    Returns:
        0 if all ranks finished, 128 + n if signal n stopped them, 2 for a user's mistake (never restarted),
        otherwise 1.
    """
    with SignalRequests().handle_signals() as requests, Logs(logs) as logs_folder:
        for start in range(restarts + 1):
            chosen = words if start == 0 or restart_words is None else restart_words
            group = RankGroup(
                _start_ranks([*program, *chosen], ranks, logs_folder, cores, environ), logs_folder, requests
            )
            try:
                code = group.wait()
            finally:
                group.kill()
            if ended is not None:
                logs_folder.move_into_run()
                ended(logs_folder.path(0).parent)
            if code != 1 or requests.received or start == restarts:
                return code
            print_message(f"restarting all ranks ({start + 1} of {restarts})")
    raise AssertionError("the last start returns")


def _start_ranks(
    command: Sequence[str], ranks: int, logs: Logs, cores: int, environ: Mapping[str, str]
) -> list[Child]:
    """Start all ranks; rank 0 inherits the listening socket, so no other process can take the port."""
    processes: list[Child] = []
    environ = rank_environment(environ)
    with socket.create_server((LOOPBACK, 0), backlog=4 * ranks) as listener:
        master = f"{LOOPBACK}:{listener.getsockname()[1]}"
        try:
            for rank in range(ranks):
                world = World(rank, ranks, rank, ranks, master, "cotswold")
                processes.append(_start_rank(command, world, listener, logs, cores, environ))
        except OSError as error:
            for process in processes:
                process.end()
            raise UserError(
                f"cannot start {ranks} ranks on this host ({error.strerror}); start fewer"
            ) from error
    return processes


def _start_rank(
    command: Sequence[str],
    world: World,
    listener: socket.socket,
    logs: Logs,
    cores: int,
    environ: Mapping[str, str],
) -> Child:
    variables = {
        **environ,
        **settings_of(world, cores, environ),
        "COTSWOLD_RANK": str(world.rank),
        "COTSWOLD_RANKS": str(world.size),
        "COTSWOLD_LOCAL_RANK": str(world.local_rank),
        "COTSWOLD_LOCAL_RANKS": str(world.local_size),
        "COTSWOLD_MASTER": world.master,
        "COTSWOLD_PARENT": str(os.getpid()),
    }
    first = world.rank == 0
    logs.log_start(world.rank, f"rank {world.rank} of {world.size}: {shlex.join(command)}")
    log = logs.open(world.rank)
    if first:
        variables |= {
            "COTSWOLD_LISTENER": str(listener.fileno()),
            rank_log.VARIABLE: rank_log.variable_value(log),
        }
    try:
        if first:
            return Child.start(command, variables, handed=(listener.fileno(), log))
        return Child.start(command, variables, output=log)
    finally:
        os.close(log)

"""`cotswold serve`: serve parameters; `cotswold serve data`: serve samples.

Knows: the arguments of the command, its line of progress. Does not know: how anything is served.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from cyclopts import App

from cotswold.cli.serve_data import serve_data

if TYPE_CHECKING:
    from cotswold.api.servers.parameter_server import ServedParameters, ServedStatus
    from cotswold.run import Stop
    from cotswold.ui.terminal import Stages

_POLL_SECONDS = 0.5
_STOP_WITH_SAVE = (
    "stopping: ending sessions, then saving the parameters; press again to stop at once, without saving"
)
_STOP_WITHOUT_SAVE = "stopping: ending sessions; nothing is saved without --save; press again to stop at once"

app = App(name="serve", help_format="plaintext")
app.command(serve_data, name="data")


@app.default
def serve(
    *,
    module: str,
    servers: int = 1,
    update_rule: Literal["sgd", "momentum", "adagrad", "deltas"] = "sgd",
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    listen: str = "127.0.0.1:0",
    token_file: Path | None = None,
    save: Path | None = None,
    resume: bool = False,
    checkpoint_minutes: float = 5.0,
    max_staleness: int | None = None,
    staleness_policy: Literal["drop", "scale"] = "drop",
    ports: str | None = None,
    encrypt: bool = True,
) -> int:
    """Serve the parameters of a module to your own training loops, until Ctrl-C or SIGTERM.

    A loop pulls and pushes by cotswold.connect(address, token), from any
    process or host that knows the token: docs/serve.md. Each push counts once, even
    if processes are killed; loops choose their own samples. Ctrl-C ends all sessions,
    saves and exits. Exit code 0: ended by a signal; 1: a server died (serve again with
    --resume); 2: a user error.

    Examples:

      openssl rand -hex 32 > token; chmod 600 token
      cotswold serve --module my_module:make_model --token-file token
      cotswold serve --module net:make --token-file token --save served --learning-rate 0.05
      cotswold serve --module net:make --token-file token --save served --resume
      cotswold serve --module net:make --token-file token --listen 10.0.0.1:7000

    Parameters
    ----------
    module
        A function without arguments that returns the torch.nn.Module, as package.module:function; Python also
        searches the current folder. Clients make the same module; its initial parameters are the served ones.
    servers
        Number of server processes; the parameters are spread over them.
    update_rule
        Update rule: sgd, momentum, adagrad; or deltas, which adds up weight changes.
    learning_rate
        The learning rate; unused for deltas.
    momentum
        For rule momentum: fraction of the last step that is kept.
    listen
        The address of this machine for clients, and the port, 0 for any free one.
    token_file
        A file with the secret, readable by this user only; created if missing. Default: COTSWOLD_TOKEN.
    save
        The folder for checkpoints and logs of the servers.
    resume
        Resume from the newest checkpoint there.
    checkpoint_minutes
        Minutes between checkpoints.
    max_staleness
        Largest number of pushes of others between a pull and its push. Default: unlimited.
    staleness_policy
        Policy for pushes beyond that: drop, or scale down.
    ports
        The ports of the servers, FIRST-LAST, at least one each. Default: any.
    encrypt
        Encrypt all traffic between hosts.
    """
    import os
    import sys

    from cotswold.api.arguments import parse_ports
    from cotswold.api.servers.parameter_client import split_address
    from cotswold.api.servers.parameter_server import build_module, serve
    from cotswold.api.signals import graceful_exit
    from cotswold.errors import UserError
    from cotswold.host import token_of
    from cotswold.run import Stop
    from cotswold.ui.terminal import show_stages, write_message, write_note

    split_address(listen)
    if token_file is None and token_of(os.environ) is None:
        raise UserError("clients need a secret: give --token-file FILE, or set COTSWOLD_TOKEN")
    between = parse_ports(ports)
    sys.path.insert(0, str(Path.cwd()))
    stop = Stop()
    with (
        graceful_exit(stop, _STOP_WITHOUT_SAVE if save is None else _STOP_WITH_SAVE),
        serve(
            build_module(module),
            servers=servers,
            update_rule=update_rule,
            learning_rate=learning_rate,
            momentum=momentum,
            listen=listen,
            token=token_file,
            save=save,
            resume=resume,
            checkpoint_minutes=checkpoint_minutes,
            max_staleness=max_staleness,
            staleness_policy=staleness_policy,
            ports=between,
            encrypt=encrypt,
            on_event=lambda kind, more: write_message(_event_text(kind, more)),
        ) as served,
        show_stages() as show,
    ):
        write_message(f"serving {module} at {served.address}; the token: {token_file or 'COTSWOLD_TOKEN'}")
        if save is None:
            write_message("nothing is saved; give --save FOLDER to save the parameters")
        _show_until_signal(served, stop, show)
    write_note(
        f"ended: {_line(served.status)}" + ("" if save is None else f"; saved in {save / 'checkpoints'}")
    )
    return 0


def _show_until_signal(served: ServedParameters, stop: Stop, show: Stages) -> None:
    """Show progress until a signal comes; raises MachineError if a server is lost."""
    while stop.signal is None and not served.wait(_POLL_SECONDS):
        show(_line(served.status), 0)


def _line(status: ServedStatus) -> str:
    """Return the progress as one line."""
    from cotswold.phrases import counted

    refused = "".join(f", {count} {reason}" for reason, count in sorted(status.refused.items()))
    pushes = f"{status.pushes} push{'' if status.pushes == 1 else 'es'}"
    return (
        f"{counted(len(status.clients), 'client')}, {pushes} ({status.pushes_per_second:.0f}/s), "
        f"staleness {status.staleness:.1f} (at most {status.staleness_max}), "
        f"{counted(status.samples, 'sample')} counted"
        + (f", {status.torn} torn" if status.torn else "")
        + (f"; refused{refused[1:]}" if refused else "")
    )


def _event_text(kind: str, more: Mapping[str, object]) -> str:
    """Return an event as text."""
    reason = more.get("sentence") or more.get("reason")
    return f"{more.get('name')} {kind.replace('_', ' ')}" + (f": {reason}" if reason else "")

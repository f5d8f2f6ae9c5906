"""A process with the head of a pool of data servers, for the run that started it.

Knows: the pool, the trainers that it calls. Does not know: the data.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotswold.dataservice.runtime.pool import open_pool, settings_from_dict
from cotswold.dataservice.runtime.server_supervision import event_text
from cotswold.errors import UserError
from cotswold.files import replace_file
from cotswold.host import ForkServer, token_of


def main(
    *,
    trainers: Mapping[str, str],
    settings: Mapping[str, Any],
    work: str,
    arguments: Mapping[str, object],
    logs: str | None = None,
    place: str | None = None,
) -> int:
    """Run a head: call ``trainers``, which may then join, and serve until killed.

    The token is in the environment.

    Args:
        trainers: Addresses of trainers to call, by name.
        settings: Settings from `settings_as_dict`.
        work: As for `open_pool`.
        arguments: As for `open_pool`.
        logs: Folder of the servers' output.
        place: File to write the head's address to, for trainers that it does not call.

    Raises:
        MachineError: If every server has exited, and restarts are exhausted.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the run ends it
    token = token_of(os.environ)
    if token is None:
        raise UserError("the head of a pool needs the run's token in COTSWOLD_TOKEN; a run must start it")
    servers = ForkServer.of_this_process({})  # before threads exist
    folder = None if logs is None else Path(logs)

    def tell(kind: str, more: Mapping[str, object]) -> None:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), event_text(kind, more), flush=True)

    with open_pool(
        settings_from_dict(settings),
        work,
        arguments,
        token=token,
        processes=servers,
        logs=folder,
        on_event=tell,
    ) as pool:
        for name, address in trainers.items():
            pool.connect(name, address)
        if place is not None:
            replace_file(Path(place), pool.address.encode())
        while True:
            pool.proceed(3600.0)

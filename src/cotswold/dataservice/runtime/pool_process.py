"""The head of a pool of data servers, in a process of its own, for the run that started it.

Knows: the pool, whom it calls. Does not know: what is served.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cotswold.dataservice.runtime.pool import open_pool, settings_of
from cotswold.dataservice.runtime.server_supervision import told
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
    """The life of a head: it calls ``trainers`` (names and addresses), who may then attend, and serves until
    it is killed.

    ``settings`` as `described`, ``work`` and ``arguments`` as for `open_pool`; servers print into the folder
    ``logs``. Its address it writes into the file ``place``, for those whom it does not call. The token is in
    the environment. Raises MachineError where every server is dead, and no start helps.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # whoever started it ends it
    token = token_of(os.environ)
    if token is None:
        raise UserError("the head of a pool needs the run's token in COTSWOLD_TOKEN; let a run start it")
    servers = ForkServer.of_this_process({})  # before there are threads
    folder = None if logs is None else Path(logs)

    def tell(kind: str, more: Mapping[str, object]) -> None:
        print(time.strftime("%Y-%m-%d %H:%M:%S"), told(kind, more), flush=True)

    with open_pool(
        settings_of(settings), work, arguments, token=token, processes=servers, logs=folder, on_event=tell
    ) as pool:
        for name, address in trainers.items():
            pool.connect(name, address)
        if place is not None:
            replace_file(Path(place), pool.address.encode())
        while True:
            pool.proceed(3600.0)

"""Fork servers for tests, forked from one process per pytest worker that has imported torch once.

A fork server imports torch and the modules of its processes, some three seconds of processor time. Hundreds
of tests start one. Here each is forked from a *template*, itself a fork server, within milliseconds.

Knows: how a fork server is started. Does not know: what is tested. Programs that tests start as new
interpreters have ordinary fork servers.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from cotswold.errors import MachineError
from cotswold.host.fork_loop import THREADS, main
from cotswold.host.fork_server import START_SECONDS, ForkServer
from cotswold.host.processes import Call

TEMPLATE_MODULES = (
    "torch",
    "cotswold.training.builders",
    "cotswold.cluster.roles.worker",
    "cotswold.cluster.roles.server",
    "cotswold.cluster.roles.replica",
    "cotswold.cluster.roles.keeper",
    "cotswold.cluster.roles.controller",
    "cotswold.cluster.roles.data_server",
)
"""Modules that the template imports."""


_COLD = ForkServer.__init__


@pytest.fixture
def cold_fork_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every fork server as a new process: for tests that look at the tree of processes."""
    monkeypatch.setattr(ForkServer, "__init__", _COLD)


def become_fork_server(
    place: str, path: list[str], modules: list[str], environ: dict[str, str], folder: str, threads: str | None
) -> None:
    """Serve the fork server that listens at ``place``, with its search path, environment and folder."""
    os.chdir(folder)
    sys.path[:] = path
    os.environ.clear()
    os.environ.update(environ)
    control = socket.socket(socket.AF_UNIX)
    control.connect(place)
    main(control.detach(), modules, threads)


@contextmanager
def warm_fork_servers(patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fork every fork server that this process makes for torch or this package from one template."""
    cold, made, thread = ForkServer.__init__, list[ForkServer](), threading.current_thread()

    def start(
        server: ForkServer, modules: Iterable[str] = ("torch",), environ: Mapping[str, str] = os.environ
    ) -> None:
        modules = list(modules)
        # a template ends with the thread that has made it
        if threading.current_thread() is not thread or not any(
            each.partition(".")[0] in ("torch", "cotswold") for each in modules
        ):
            cold(server, modules, environ)
            return
        if not made or made[0].code() is not None:
            template = ForkServer.__new__(ForkServer)
            cold(template, TEMPLATE_MODULES, {**os.environ, "TORCH_CPP_LOG_LEVEL": "FATAL"})
            made[:] = [template]
        with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
            place = str(Path(folder) / "s")
            listener.bind(place)
            listener.listen(1)
            listener.settimeout(START_SECONDS)
            arguments = {
                "place": place,
                "path": sys.path,
                "modules": modules,
                "environ": {**environ, THREADS: "1"},
                "folder": str(Path.cwd()),
                "threads": environ.get(THREADS),
            }
            process = made[0].start(Call("a fork server", f"{__name__}:become_fork_server", arguments))
            try:
                control, _ = listener.accept()
            except TimeoutError as error:
                process.end()
                raise MachineError(f"a fork server cannot be started: {process.why()}") from error
        server._keep(control, process)  # type: ignore[arg-type]  # it has the verbs of a child

    patch.setattr(ForkServer, "__init__", start)
    yield
    for template in made:
        template.close()

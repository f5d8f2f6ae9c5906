"""Hosts of a standing cluster, each a process of `cotswold cluster start` or `add` that a test may kill.

Knows: arguments of the commands, the files of a host's folder. Does not know: the tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.support.replication.standalone_cluster import until

from cotswold.host import Token
from cotswold.host.token import CLUSTER_VARIABLE


class Supervisor:
    """One host, which can be killed and started again; use in a ``with`` statement."""

    def __init__(self, folder: Path, token: Token, *words: object) -> None:
        """Prepare the command with these ``words``, from `start` or `add` on."""
        self.folder = folder
        self._command = [sys.executable, "-m", "cotswold", "cluster", *map(str, words)]
        self._command += ["--folder", str(folder)]
        self._environ = {**os.environ, CLUSTER_VARIABLE: token.text, "OMP_NUM_THREADS": "1"}
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the command without waiting."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=self._environ, start_new_session=True
            )

    def end(self, number: signal.Signals) -> None:
        """Send a signal, and wait until the process has exited; its servers exit with it."""
        assert self._process is not None, "it runs"
        self._process.send_signal(number)
        self._process.wait(60)
        until(lambda: not any(map(_runs, self.processes.values())))

    @property
    def events(self) -> list[tuple[str, str]]:
        """Return kinds and sentences of this host's events so far."""
        with suppress(FileNotFoundError):
            lines = (self.folder / "events.jsonl").read_text().splitlines()
            return [(each["kind"], each["sentence"]) for each in map(json.loads, lines)]
        return []

    @property
    def processes(self) -> dict[str, int]:
        """Return the process ids of all processes that this host has ever had, by name."""
        served = [sentence.split() for kind, sentence in self.events if kind == "serving"]
        return {words[0]: int(words[-1]) for words in served}

    @property
    def living(self) -> dict[str, int]:
        """Return the processes that run."""
        return {name: number for name, number in self.processes.items() if _runs(number)}

    def told(self, kind: str) -> list[str]:
        """Return the sentences of one kind."""
        return [sentence for each, sentence in self.events if each == kind]

    def __enter__(self) -> Supervisor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGINT)


def _runs(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False

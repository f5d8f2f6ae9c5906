"""An authority that lives for a test, and certificates that it has signed.

Knows: the program `openssl`. Does not know: who shows a certificate to whom.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cotswold.errors import MachineError

_ELLIPTIC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS = ("-days", "2")
_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Certificate:
    """Files in PEM."""

    authority: Path
    certificate: Path
    key: Path


class Authority:
    """It signs certificates in a folder of its own; raises MachineError without openssl."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._run(
            *("req", "-x509", *_ELLIPTIC, *_DAYS, "-subj", "/CN=authority"),
            *("-keyout", "ca-key.pem", "-out", "ca.pem"),
        )

    def signed(self, name: str, addresses: Sequence[str]) -> Certificate:
        """A certificate of ``name`` for so many addresses, to be shown as a server and as a client."""
        names = self._folder / f"{name}-names"
        names.write_text("subjectAltName=" + ",".join(f"IP:{address}" for address in addresses) + "\n")
        self._run(
            *("req", *_ELLIPTIC, "-subj", f"/CN={name}"),
            *("-keyout", f"{name}-key.pem", "-out", f"{name}-wanted.pem"),
        )
        self._run(
            *("x509", "-req", "-in", f"{name}-wanted.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem"),
            *("-CAcreateserial", *_DAYS, "-extfile", str(names.absolute()), "-out", f"{name}.pem"),
        )
        return Certificate(
            self._folder / "ca.pem", self._folder / f"{name}.pem", self._folder / f"{name}-key.pem"
        )

    def _run(self, *words: str) -> None:
        program = shutil.which("openssl")
        if program is None:
            raise MachineError("certificates are made by openssl, which is not installed; install openssl")
        done = subprocess.run(
            [program, *words],
            cwd=self._folder,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
        if done.returncode:
            raise MachineError(
                f"openssl cannot make a certificate: {' '.join(done.stderr.split())[-300:]}; update it"
            )

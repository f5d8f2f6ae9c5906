"""A temporary certificate authority for tests, and certificates that it signs.

Knows: the program `openssl`. Does not know: the use of the certificates.
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
    """A signed certificate as PEM files.

    Attributes:
        authority: Certificate of the authority.
        certificate: The certificate.
        key: Its private key.
    """

    authority: Path
    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a new folder.

    Args:
        folder: Folder to create for its files.

    Raises:
        MachineError: openssl is not installed or fails.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True)
        self._run(
            *("req", "-x509", *_ELLIPTIC, *_DAYS, "-subj", "/CN=authority"),
            *("-keyout", "ca-key.pem", "-out", "ca.pem"),
        )

    def signed(self, name: str, addresses: Sequence[str]) -> Certificate:
        """Sign a certificate for servers and clients.

        Args:
            name: Common name, also used for the file names.
            addresses: IP addresses for which the certificate is valid.

        Returns:
            The files of the certificate.

        Raises:
            MachineError: openssl fails.
        """
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
            raise MachineError("certificates are created by openssl, which is not installed; install openssl")
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
                f"openssl cannot create a certificate: {' '.join(done.stderr.split())[-300:]}; update it"
            )

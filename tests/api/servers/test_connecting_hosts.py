"""Loops and parameter servers on two hosts (network namespaces), and the traffic between them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.batch.runtime.test_cluster_of_hosts import recorded
from tests.support.api.loops import SIZE

from cotswold.testing import Hosts, why_not

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]
ROOT = Path(__file__).parents[3]
TOKEN = "0123456789abcdef" * 4
ONES = b"\x00\x00\x80?" * SIZE
"""Bytes of a push of ones on the wire."""


@pytest.mark.soak
@pytest.mark.parametrize("encrypted", [True, False])
def test_loops_of_another_host_push_through_ports_that_are_given(encrypted: bool) -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "COTSWOLD_TOKEN": TOKEN}
    with Hosts(2) as hosts, recorded(hosts, 1) as packets:
        words = [
            "serve",
            "--module",
            "tests.support.api.loops:make",
            "--servers",
            "2",
            "--ports",
            "7001-7009",
        ]
        words += ["--listen", f"{hosts.address(0)}:7000", "--encrypt" if encrypted else "--no-encrypt"]
        serving = subprocess.Popen(
            [*hosts.words(0), sys.executable, "-m", "cotswold", *words],
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=ROOT,
        )
        try:
            assert serving.stderr is not None
            said = serving.stderr.readline()
            assert re.search(r" at 10\.97\.0\.1:7000;", said), said + serving.stderr.read()
            where = [TOKEN, "20", "7100-7109", "encrypted" if encrypted else "plain"]
            loop = subprocess.run(
                [
                    *hosts.words(1),
                    sys.executable,
                    "-m",
                    "tests.support.api.loops",
                    f"{hosts.address(0)}:7000",
                    *where,
                ],
                capture_output=True,
                text=True,
                env=environ,
                cwd=ROOT,
                timeout=60,
                check=False,
            )
            assert loop.stdout.split() == [str(number) for number in range(1, 21)], loop.stderr
            assert (ONES in packets()) is not encrypted
            assert TOKEN.encode() not in packets()
            serving.send_signal(signal.SIGINT)
            _, told = serving.communicate(timeout=30)
            assert serving.returncode == 0 and "20 samples counted" in told, told
        finally:
            serving.kill()
            serving.communicate()

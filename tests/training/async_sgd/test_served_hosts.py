"""Data servers, a machine with remote ones, and trainers, on hosts that are network namespaces."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.batch.runtime.test_cluster_of_hosts import recorded
from tests.support.training.served_runs import ROOT, serving
from tests.support.training.small_recipes import supervised

from cotswold.testing import Hosts, why_not

WHY_NOT = why_not()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]
TOKEN = "t" * 64
LOOP = """
import sys
import cotswold.data
address, encrypted, kept = sys.argv[1:]
count = 0
with cotswold.data.connect(address, stream="epochs", batch_size=8, encrypt=encrypted == "True") as batches:
    for x, _ in batches:
        count += len(x)
    with open(kept, "wb") as file:
        file.write(x.permute(2, 3, 1, 0).numpy().tobytes())
print(count)
"""


def loop(hosts: Hosts, host: int, *words: object) -> str:
    """Return the output of a loop on a host."""
    said = subprocess.run(
        [*hosts.words(host), sys.executable, "-c", LOOP, *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "COTSWOLD_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return said.stdout.strip()


@pytest.mark.soak
@pytest.mark.parametrize("encrypted", [True, False])
def test_batches_reach_another_host_through_ports_that_are_given_and_can_be_secret(
    encrypted: bool, images: Path, stores: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "mine.toml"
    recipe.write_text(supervised(images))
    words = (recipe, "--stores", stores, "--servers", 1, "--encrypt" if encrypted else "--no-encrypt")
    with Hosts(3) as hosts, recorded(hosts, 2) as packets:
        listen = ("--listen", f"{hosts.address(0)}:7000", "--ports", "7001-7009")
        with serving(*words, *listen, folder=tmp_path, before=hosts.words(0)) as head:
            assert head.address == f"{hosts.address(0)}:7000"
            assert loop(hosts, 2, head.address, encrypted, tmp_path / "batch") == "48"
            batch = (tmp_path / "batch").read_bytes()
            pieces = [batch[start : start + 64] for start in range(0, len(batch), 4096)]
            assert len(pieces) >= 4 and len(set(pieces)) > 1
            assert any(each in packets() for each in pieces) is not encrypted
            assert TOKEN.encode() not in packets()
            join = ("--join", head.address)
            with serving(*words, *join, folder=tmp_path, before=hosts.words(1)) as lent:
                lent.until("data-server-.* serves")
                head.until("2 servers")
                assert loop(hosts, 2, head.address, encrypted, tmp_path / "batch") == "48"
                lent.process.send_signal(signal.SIGTERM)
                assert lent.ended() == 0
                assert loop(hosts, 2, head.address, encrypted, tmp_path / "batch") == "48"
            assert head.stopped().startswith("cotswold: ended: 0 trainers, 1 server, ")

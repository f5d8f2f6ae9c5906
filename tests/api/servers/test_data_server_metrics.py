"""Prometheus metrics of a pool of data servers while it serves."""

from __future__ import annotations

import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.run.prometheus.test_exposition import parsed

import cotswold
import cotswold.data
from cotswold.api.servers.data_server import ServedData
from cotswold.api.servers.data_server_metrics import families
from cotswold.api.servers.data_server_status import ServedDataStatus, WorkTotals
from cotswold.data import Preparation, open_source, prepare
from cotswold.dataservice.runtime.pool import ServerLine
from cotswold.errors import UserError
from cotswold.run.prometheus.exposition import exposition

SAMPLES, BATCH = 60, 12
SAMPLE_BYTES = 8 * 8 * 4 + 8
"""Float32 pixels, and a label."""
LINE = ServerLine("data-server-1", 7, 60, 5, 960, 0.5, 3, 1, 256, 512, 2, 4.0)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 255, (SAMPLES, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "digits.npy", pixels)
    plain = Preparation((8, 8), colour="grey", per_image_standardise=False, whiten=False, dtype="uint8")
    prepare(open_source(tmp_path / "digits.npy"), tmp_path / "store", plain, validation=0.0, jobs=1)
    return tmp_path / "store"


@pytest.fixture
def served(store: Path) -> Iterator[ServedData]:
    with cotswold.serve_data(store, servers=2, cache="1 MB", metrics="0", progress=False) as found:
        yield found


def read(served: ServedData) -> dict[str, dict[str, Any]]:
    with urllib.request.urlopen(served.metrics_url, timeout=5) as answer:
        return parsed(answer.read().decode())


def values(found: dict[str, dict[str, Any]], name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Return the values by labels, or nothing if no process has the metric."""
    told: dict[tuple[tuple[str, str], ...], float] = found.get(f"cotswold_data_{name}", {}).get("values", {})
    return told


def until(
    served: ServedData, holds: Callable[[dict[str, dict[str, Any]]], bool]
) -> dict[str, dict[str, Any]]:
    """Return the metrics once a condition holds; servers and trainers report in their heartbeats."""
    deadline = time.monotonic() + 60
    while not holds(found := read(served)):
        assert time.monotonic() < deadline, found
        assert not served.wait(0.05)
    return found


@pytest.mark.slow
def test_a_pool_that_serves_is_read_as_metrics(served: ServedData) -> None:
    assert served.metrics_url.startswith("http://127.0.0.1:")
    until(served, lambda found: values(found, "servers") == {(): 2})
    with cotswold.data.connect(served.address, served.token, stream="epochs", batch_size=BATCH) as batches:
        assert sum(len(x) for x, _ in batches) == SAMPLES
        loop = iter(batches)
        next(loop)
        found = until(served, lambda found: sum(values(found, "trainer_samples_total").values()) > SAMPLES)
        assert values(found, "trainers") == {(): 1}
        assert list(values(found, "trainer_wait_seconds_total")) == list(
            values(found, "trainer_samples_total")
        )
        assert values(found, "stream_epoch") == {(("stream", "epochs"),): 2}
    found = until(served, lambda found: values(found, "trainers") == {(): 0})
    by = {labels[1][1]: count for labels, count in values(found, "stream_samples_total").items()}
    assert by["delivered"] == SAMPLES + BATCH and by["lost"] == by["left_out"] == 0
    found = until(served, lambda found: values(found, "samples_total")[()] >= SAMPLES + BATCH)
    made = values(found, "samples_total")[()]
    assert values(found, "sent_bytes_total") == {(): made * SAMPLE_BYTES}
    assert values(found, "batches_total")[()] >= made / BATCH
    assert sum(values(found, "server_samples_total").values()) == made
    assert values(found, "busy_seconds_total")[()] > 0
    assert values(found, "cache_misses_total")[()] >= 1
    assert sum(values(found, "server_cache_bytes").values()) > 0
    assert values(found, "silent_servers") == values(found, "queued_requests") == {(): 0}
    os.kill(served.status.servers[0].pid or os.getpid(), signal.SIGKILL)
    found = until(served, lambda found: values(found, "restarted_servers_total") == {(): 1})
    found = until(served, lambda found: values(found, "servers") == {(): 2})
    assert values(found, "exited_servers_total") == {(): 1}
    assert values(found, "samples_total")[()] == made, "those that are gone count too"


@pytest.mark.slow
def test_metrics_end_with_the_pool_and_their_port_is_its_own(store: Path) -> None:
    with cotswold.serve_data(store, servers=1, metrics="0", progress=False) as served:
        url = served.metrics_url
        place = url.removeprefix("http://").removesuffix("/metrics")
        with pytest.raises(UserError, match=f"metrics cannot be served at {place} .*--metrics PORT"):
            cotswold.serve_data(store, servers=1, metrics=place, progress=False)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=5)


def test_what_names_no_port_is_refused_before_anything_starts(store: Path) -> None:
    with pytest.raises(UserError, match="metrics: 'here' is not a port"):
        cotswold.serve_data(store, metrics="here")


def test_silent_servers_are_counted_and_attached_ones_omit_trainers() -> None:
    lines = (LINE, replace(LINE, name="data-server-2", silent_seconds=0.5))
    status = ServedDataStatus(
        (), lines, WorkTotals.from_reports(lines), 0.0, {"data-server-3": "was killed"}, 1, {}, (), ()
    )
    found = parsed(exposition(families(status, "0123456789abcdef", is_attached=True)))
    assert values(found, "silent_servers") == {(): 1}
    assert values(found, "samples_total") == {(): 120} and values(found, "queued_requests") == {(): 4}
    assert values(found, "info") == {(("store", "0123456789ab"),): 1}
    assert "cotswold_data_trainers" not in found
    assert values(
        parsed(exposition(families(status, "0123456789abcdef", is_attached=False))), "trainers"
    ) == {(): 0}

"""Metrics of a pool of data servers.

Knows: the metrics of a status, their names and units. Does not know: the format, the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cotswold.api.servers.data_server_status import ServedDataStatus, WorkTotals
from cotswold.dataservice.core.shared_epochs import StreamTotals
from cotswold.dataservice.runtime.pool import ServerLine
from cotswold.run.prometheus.exposition import MetricFamily, Values, counter, gauge

SILENT_SECONDS = 3.0
"""Seconds without a message after which a server counts as silent; each sends one per second."""
_OUTCOMES: Sequence[tuple[str, Callable[[StreamTotals], int]]] = (
    ("delivered", lambda totals: totals.delivered),
    ("lost", lambda totals: totals.died),
    ("left_out", lambda totals: totals.left_out),
    ("reassigned", lambda totals: totals.dealt_again),
)

_TOTALS: Sequence[tuple[str, str, Callable[[WorkTotals], float]]] = (
    ("samples", "Samples made and sent by data servers.", lambda made: made.samples),
    ("batches", "Batches of these samples.", lambda made: made.batches),
    ("sent_bytes", "Bytes of these batches.", lambda made: made.sent_bytes),
    ("busy_seconds", "Seconds in which threads of data servers made batches.", lambda made: made.seconds),
    ("cache_hits", "Samples found in the cache.", lambda made: made.hits),
    ("cache_misses", "Samples whose shards had to be read.", lambda made: made.misses),
)
_SERVER_METRICS: Sequence[tuple[str, str, Callable[[ServerLine], float]]] = (
    ("samples_total", "Samples made and sent by a data server.", lambda line: line.supplied),
    ("batches_total", "Batches of these samples.", lambda line: line.batches),
    ("sent_bytes_total", "Bytes of these batches.", lambda line: line.sent_bytes),
    ("busy_seconds_total", "Seconds in which its threads made batches.", lambda line: line.seconds),
    ("cache_hits_total", "Samples found in its cache.", lambda line: line.hits),
    ("cache_misses_total", "Samples whose shards it had to read.", lambda line: line.misses),
    ("cache_bytes", "Bytes of shards in its cache.", lambda line: line.cached_bytes),
    ("cache_max_bytes", "Peak of the bytes in its cache.", lambda line: line.cached_bytes_most),
    ("queued_requests", "Requested batches that it has not started.", lambda line: line.waiting),
    ("silent_seconds", "Seconds since its last message.", lambda line: line.silent_seconds),
)


def families(status: ServedDataStatus, store: str, *, is_attached: bool) -> Iterator[MetricFamily]:
    """Yield the metrics of a status.

    ``store`` is the identity of the served store. Trainers and streams are unknown if the servers joined
    another pool.
    """
    yield gauge("data_info", "The served store.", [({"store": store[:12]}, 1.0)])
    for name, about, of in _TOTALS:
        yield counter(f"data_{name}_total", f"{about} Includes servers that exited.", _one(of(status.made)))
    yield gauge("data_servers", "Running data servers.", _one(len(status.servers)))
    silent = sum(each.silent_seconds > SILENT_SECONDS for each in status.servers)
    yield gauge("data_silent_servers", "Data servers without a message for 3 seconds.", _one(silent))
    yield counter("data_exited_servers_total", "Data servers that exited.", _one(len(status.ended)))
    yield counter(
        "data_restarted_servers_total", "Data servers that exited and were restarted.", _one(status.replaced)
    )
    yield gauge("data_queued_requests", "Requested batches that no server has started.", _one(status.waiting))
    yield counter(
        "data_refused_messages_total",
        "Clients without the token and malformed messages, by reason.",
        [({"reason": reason}, count) for reason, count in sorted(status.refused.items())],
    )
    for name, about, told in _SERVER_METRICS:
        values: Values = [({"server": each.name}, told(each)) for each in status.servers]
        yield (counter if name.endswith("_total") else gauge)(f"data_server_{name}", about, values)
    if not is_attached:
        yield from _trainers(status)
        yield from _streams(status.streams)


def _trainers(status: ServedDataStatus) -> Iterator[MetricFamily]:
    yield gauge("data_trainers", "Connected trainers.", _one(len(status.trainers)))
    yield counter(
        "data_trainer_samples_total",
        "Samples received by the loop of a trainer.",
        [({"trainer": each.name}, each.samples) for each in status.trainers],
    )
    yield counter(
        "data_trainer_wait_seconds_total",
        "Seconds for which the loop waited for them.",
        [({"trainer": each.name}, each.waited_seconds) for each in status.trainers],
    )


def _streams(streams: Sequence[StreamTotals]) -> Iterator[MetricFamily]:
    yield gauge(
        "data_stream_epoch",
        "The current epoch of a stream, counted from 1.",
        [({"stream": each.stream}, each.epoch + 1) for each in streams],
    )
    yield counter(
        "data_stream_samples_total",
        "Samples of all epochs of a stream by outcome; reassigned samples are counted again.",
        [
            ({"stream": each.stream, "outcome": outcome}, count(each))
            for each in streams
            for outcome, count in _OUTCOMES
        ],
    )
    yield gauge(
        "data_stream_in_flight_samples",
        "Samples of a stream that trainers have but that are not yet delivered.",
        [({"stream": each.stream}, each.dealt) for each in streams],
    )
    yield gauge(
        "data_stream_unassigned_samples",
        "Samples of a stream's epochs that no trainer has.",
        [({"stream": each.stream}, each.free) for each in streams],
    )


def _one(value: float) -> Values:
    return [({}, value)]

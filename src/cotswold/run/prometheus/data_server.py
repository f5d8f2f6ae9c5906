"""What a pool of data servers tells as metrics.

Knows: which figures of a status are metrics, their names and units. Does not know: the format, who asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cotswold.api.servers.data_server import Made, ServedDataStatus
from cotswold.dataservice.core.shared_epochs import StreamTotals
from cotswold.dataservice.runtime.pool import ServerLine
from cotswold.run.prometheus.exposition import Family, Values, counter, gauge

LATE_SECONDS = 3.0
"""A server that has said nothing for so long is late: it says something each second."""
_OUTCOMES = ("delivered", "died", "left_out", "dealt_again")

_OF_ALL: Sequence[tuple[str, str, Callable[[Made], float]]] = (
    ("samples", "Samples that data servers have made and sent.", lambda made: made.samples),
    ("batches", "Batches of these samples.", lambda made: made.batches),
    ("sent_bytes", "Bytes of these batches.", lambda made: made.sent_bytes),
    ("busy_seconds", "Seconds in which threads of data servers made batches.", lambda made: made.seconds),
    ("cache_hits", "Samples that were found in memory.", lambda made: made.hits),
    ("cache_misses", "Samples whose shards were read.", lambda made: made.misses),
)
_OF_A_SERVER: Sequence[tuple[str, str, Callable[[ServerLine], float]]] = (
    ("samples_total", "Samples that a data server has made and sent.", lambda line: line.supplied),
    ("batches_total", "Batches of these samples.", lambda line: line.batches),
    ("sent_bytes_total", "Bytes of these batches.", lambda line: line.sent_bytes),
    ("busy_seconds_total", "Seconds in which its threads made batches.", lambda line: line.seconds),
    ("cache_hits_total", "Samples that it found in memory.", lambda line: line.hits),
    ("cache_misses_total", "Samples whose shards it read.", lambda line: line.misses),
    ("cache_bytes", "Bytes of shards that it keeps in memory.", lambda line: line.cached_bytes),
    ("cache_most_bytes", "The most that it ever kept.", lambda line: line.cached_bytes_most),
    ("waiting_requests", "Batches that it was asked for, and has not begun.", lambda line: line.waiting),
    ("silent_seconds", "For how long nothing was heard of it.", lambda line: line.silent_seconds),
)


def families(status: ServedDataStatus, store: str, *, is_lent: bool) -> Iterator[Family]:
    """Metrics of a status; ``store``: the identity of what is served. Who trains, and what loops share, is
    not known where servers are lent."""
    yield gauge("data_info", "What is served.", [({"store": store[:12]}, 1.0)])
    for name, about, of in _OF_ALL:
        yield counter(f"data_{name}_total", f"{about} Those that are gone count too.", _one(of(status.made)))
    yield gauge("data_servers", "Data servers that are there.", _one(len(status.servers)))
    late = sum(each.silent_seconds > LATE_SECONDS for each in status.servers)
    yield gauge("data_late_servers", "Those of them that have said nothing for 3 seconds.", _one(late))
    yield counter("data_ended_servers_total", "Data servers that have ended.", _one(len(status.ended)))
    yield counter(
        "data_replaced_servers_total", "Those in whose place another was started.", _one(status.replaced)
    )
    yield gauge("data_waiting_requests", "Batches that wait until a server begins.", _one(status.waiting))
    yield counter(
        "data_refused_messages_total",
        "Callers without the token, and bytes that are no message, by reason.",
        [({"reason": reason}, count) for reason, count in sorted(status.refused.items())],
    )
    for name, about, told in _OF_A_SERVER:
        values: Values = [({"server": each.name}, told(each)) for each in status.servers]
        yield (counter if name.endswith("_total") else gauge)(f"data_server_{name}", about, values)
    if not is_lent:
        yield from _trainers(status)
        yield from _streams(status.streams)


def _trainers(status: ServedDataStatus) -> Iterator[Family]:
    yield gauge("data_trainers", "Trainers that are there.", _one(len(status.trainers)))
    yield counter(
        "data_trainer_samples_total",
        "Samples that the loop of a trainer has had.",
        [({"trainer": each.name}, each.samples) for each in status.trainers],
    )
    yield counter(
        "data_trainer_waited_seconds_total",
        "Seconds for which it waited for them.",
        [({"trainer": each.name}, each.waited_seconds) for each in status.trainers],
    )


def _streams(streams: Sequence[StreamTotals]) -> Iterator[Family]:
    yield gauge(
        "data_stream_epoch",
        "The epoch of a stream that is on, counted from 1.",
        [({"stream": each.stream}, each.epoch + 1) for each in streams],
    )
    yield counter(
        "data_stream_samples_total",
        "Samples of all epochs of a stream by what became of them; those that are dealt again come again.",
        [
            ({"stream": each.stream, "outcome": outcome}, getattr(each, outcome))
            for each in streams
            for outcome in _OUTCOMES
        ],
    )
    yield gauge(
        "data_stream_dealt_samples",
        "Samples of a stream that trainers have, and that were not delivered yet.",
        [({"stream": each.stream}, each.dealt) for each in streams],
    )
    yield gauge(
        "data_stream_free_samples",
        "Samples of a stream's epochs that nobody has.",
        [({"stream": each.stream}, each.free) for each in streams],
    )


def _one(value: float) -> Values:
    return [({}, value)]

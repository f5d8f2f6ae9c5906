"""A network of any size, trained by one replica and one server for some steps: time, bytes, memory.

Knows: a recipe of two equal layers, the memory of processes, recorded traffic. Does not know: the command,
which network is the largest.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import inf, isqrt
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cotswold.bench.measure import Document, rounded
from cotswold.bench.server.recorded import Recorded, RecordedMessage, read
from cotswold.recipe import parse
from cotswold.training import open_store
from lib.downpour.replicas import opened, proceed_until

FORMS = {
    "gradient": ("training.push_format=gradient",),
    "factors": ("training.push_format=factors",),
    "deltas": ("training.update_rule=deltas",),
}
"""Forms of a push, with the fields of the recipe for each."""
FEATURES, CLASSES, SAMPLES = 64, 10, 4_096
FLOAT_BYTES = 4
SERVER_BYTES = 900_000_000
"""Most bytes of weights per server: a replica's pull from a server is one message of at most 1 GiB."""
LOOK_SECONDS = 0.05
RECIPE = """
name = "two-layers"
data = {{ type = "vectors", source = "{source}", labels = "file", features = {features}, \
validation = 0.1, standardise = false }}
network = {{ layers = [{{ type = "linear", features = {units} }}, {{ type = "relu" }}, \
{{ type = "linear", features = {units} }}, {{ type = "relu" }}] }}
training = {{ strategy = "downpour", batch_size = {batch}, learning_rate = 1e-4, epochs = 1000, \
shard_kilobytes = 16384, record_traffic = true }}
"""


class _TooLargeError(Exception):
    """A network takes more memory than its limit."""


def units_for(room_bytes: float, bytes_a_weight: float) -> int:
    """Return the width of each of two layers whose weights fit in the memory, a multiple of sixteen."""
    return max(16, isqrt(int(max(0.0, room_bytes) / bytes_a_weight)) // 16 * 16)


def weights_of(units: int) -> int:
    """Return the number of parameters of the network."""
    return units * (FEATURES + units + CLASSES) + 2 * units + CLASSES


def measured(form: str, units: int, batch: int, steps: int, most_bytes: float = inf) -> Document:
    """Measure one network: seconds per step, bytes per step, the peak memory of all processes.

    A network whose processes exceed ``most_bytes`` is stopped at once; its result has only its peak.
    """
    found: Document = {"sends": form, "units": units, "parameters": weights_of(units), "batch": batch}
    with TemporaryDirectory() as name, watched(most_bytes) as memory, suppress(_TooLargeError):
        found |= _trained(form, units, batch, steps, Path(name), memory)
    return found | {"is_stopped": memory.is_over, "peak_bytes": memory.peak_bytes}


def _trained(form: str, units: int, batch: int, steps: int, folder: Path, memory: Memory) -> Document:
    """Train the network; raises _TooLargeError."""
    rng = np.random.default_rng(0)
    source = folder / "vectors.npy"
    np.save(source, rng.standard_normal((SAMPLES, FEATURES), np.float32))
    np.save(folder / "vectors.labels.npy", rng.integers(0, CLASSES, SAMPLES))
    servers = 1 + FLOAT_BYTES * units * (units + FEATURES + CLASSES) // SERVER_BYTES
    recipe = parse(
        RECIPE.format(source=source, features=FEATURES, units=units, batch=batch),
        overrides=[*FORMS[form], "cluster.workers=1", f"cluster.servers={servers}"],
    )
    store = open_store(recipe, folder / "stores")
    with opened(recipe, store, folder / "rows", run=folder) as replicas:
        memory.check()
        replicas.resume()
        proceed_until(replicas, lambda: replicas.ledger.total.counted >= batch, memory.check)
        began, before = time.perf_counter(), replicas.ledger.total.counted
        last = before + steps * batch
        proceed_until(replicas, lambda: replicas.ledger.total.counted >= last, memory.check)
        seconds = time.perf_counter() - began
        done = (replicas.ledger.total.counted - before) / batch
        size = replicas.size
    traffic = read(folder)
    pushed, pulled = bytes_of(traffic)
    return {
        "servers": servers,
        "step_seconds": rounded(seconds / done),
        "steps": done,
        "pushed_bytes_a_step": rounded(pushed),
        "pushed_bytes_a_weight": rounded(pushed / size),
        "pulled_bytes_a_step": rounded(pulled),
    }


def bytes_of(traffic: Recorded) -> tuple[float, float]:
    """Return the mean bytes of a push and of a pull, without the headers of messages."""
    sizes = {shard.number: shard.stop - shard.start for shard in traffic.shards}
    pushes = [event for session in traffic.sessions for event in session if event.is_push]
    pulls = [event for session in traffic.sessions for event in session if not event.is_push]
    pushed = sum(_pushed(event, traffic, sizes) for event in pushes) / max(1, len(pushes))
    pulled = sum(sum(sizes[number] for number in event.shards) for event in pulls) / max(1, len(pulls))
    return FLOAT_BYTES * pushed, FLOAT_BYTES * pulled


def _pushed(event: RecordedMessage, traffic: Recorded, sizes: dict[int, int]) -> int:
    """Return the numbers in a push; with factors, a tensor's activations count once, plus the error terms of
    its rows."""
    of = {shard.number: shard for shard in traffic.shards}
    total, seen = 0, set[str]()
    examples: Sequence[int] = event.examples or (0,) * len(event.shards)
    for number, count in zip(event.shards, examples, strict=True):
        tensor = of[number].tensor
        if not count:
            total += sizes[number]
            continue
        columns = traffic.columns[tensor]
        total += count * (sizes[number] // columns)
        total += 0 if tensor in seen else count * columns
        seen.add(tensor)
    return total


@dataclass
class Memory:
    """Memory of this process and all its descendants in bytes; shared memory counts once."""

    peak_bytes: int
    most_bytes: float = inf
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def is_over(self) -> bool:
        """True if the peak ever exceeded the limit."""
        return self.peak_bytes > self.most_bytes

    def check(self) -> None:
        """Raise _TooLargeError if the peak exceeded the limit."""
        if self.is_over:
            raise _TooLargeError


@contextmanager
def watched(most_bytes: float = inf) -> Iterator[Memory]:
    """Sample the memory several times per second."""
    memory = Memory(tree_bytes(), most_bytes)

    def look() -> None:
        while not memory.stopped.wait(LOOK_SECONDS):
            memory.peak_bytes = max(memory.peak_bytes, tree_bytes())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield memory
    finally:
        memory.stopped.set()
        watcher.join()


def tree_bytes() -> int:
    """Return the current memory of this process and its descendants: proportional set sizes."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):
            pid, rest = int(place.parent.name), place.read_text().rpartition(")")[2].split()
            parents.setdefault(int(rest[1]), []).append(pid)
    total, waiting = 0, [os.getpid()]
    while waiting:
        pid = waiting.pop()
        waiting += parents.get(pid, [])
        with suppress(OSError, ValueError, IndexError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += 1024 * int(text.partition("\nPss:")[2].split()[0])
    return total

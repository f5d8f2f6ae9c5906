"""Measure messages between two processes over endpoints, compared with raw ZeroMQ with the same setting.

    python benchmarks/transport.py [--rounds 5] [--out benchmarks/results]

Over a Unix socket, TCP on the loopback, CURVE, and shared memory: one-way messages of several lengths (GB/s),
and round trips of short ones (µs). Endpoint and raw sockets alternate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import zmq

from cotswold.bench.measure import document
from cotswold.host import Token
from cotswold.transport import Endpoint, Message, address, endpoint

TOKEN = Token("measurement-" * 3)
LENGTHS = (1 << 16, 1 << 20, 16 << 20)
BYTES = 1 << 28
ECHOES = 2000
PLAIN, CURVE, LOCAL, SHARED = "loopback, plain", "loopback, CURVE", "Unix socket", "shared memory"
SETTINGS = (LOCAL, PLAIN, CURVE, SHARED)


@dataclass(frozen=True)
class Task:
    """Request to both sides: a number of messages of a length; each is answered, or only the last."""

    length: int
    count: int
    echoes: bool


def make_endpoint(name: str, setting: str) -> Endpoint:
    """Return an endpoint forced to this transport."""
    os.environ["COTSWOLD_SHARED_MEMORY"] = "1" if setting == SHARED else "0"
    if setting in (PLAIN, CURVE):
        address.Address.is_local = property(lambda _: False)  # type: ignore[method-assign,assignment]  # as between hosts
        endpoint._loops = _never
    return Endpoint(TOKEN, name, host="127.0.0.1", encrypt=setting == CURVE)


def _never(host: str) -> bool:
    return False


def serve_endpoint(setting: str, pipe: Connection) -> None:
    """Run the endpoint's other side: count messages, answer."""
    with make_endpoint("there", setting) as there:
        pipe.send(there.address)
        while True:
            event = there.receive(None)
            if not isinstance(event, Message):
                return
            if event.header["answer"]:
                there.send(event.sender, {})


def endpoint_seconds(setting: str, tasks: list[Task], address_there: str) -> list[float]:
    """Return the time of each task."""
    with make_endpoint("here", setting) as here:
        here.connect("there", address_there)

        def exchange(task: Task) -> None:
            data = bytearray(task.length)
            for number in range(task.count):
                last = task.echoes or number == task.count - 1
                while here.unread_bytes("there") > 64 << 20:
                    here.receive(0.001)
                here.send("there", {"answer": last}, [data] if task.length else [])
                if last:
                    answer = here.receive(30)
                    assert isinstance(answer, Message), f"{setting}: {answer}"

        return [clocked(exchange, task) for task in tasks]


def raw_sockets(setting: str, context: zmq.Context[zmq.Socket[bytes]], *, serves: bool) -> zmq.Socket[bytes]:
    """Return a raw socket with the same mechanism."""
    socket = context.socket(zmq.PAIR)
    socket.sndhwm = socket.rcvhwm = 16
    if setting == CURVE:
        secret = zmq.utils.z85.encode(TOKEN.derive("raw"))
        socket.curve_secretkey = secret
        if serves:
            socket.curve_server = 1
        else:
            socket.curve_publickey = socket.curve_serverkey = zmq.curve_public(secret)
    return socket


def serve_raw(setting: str, pipe: Connection) -> None:
    """Run the raw socket's other side."""
    with zmq.Context() as context, tempfile.TemporaryDirectory() as folder:
        socket = raw_sockets(setting, context, serves=True)
        socket.bind("tcp://127.0.0.1:*" if setting in (PLAIN, CURVE) else f"ipc://{folder}/socket")
        where = socket.getsockopt(zmq.LAST_ENDPOINT)
        assert isinstance(where, bytes)
        pipe.send(where.rstrip(b"\0").decode())
        while True:
            frames = socket.recv_multipart(copy=False)
            if frames[0].bytes == b"end":
                break
            if frames[0].bytes == b"answer":
                socket.send(b"")
        socket.close()


def raw_seconds(setting: str, tasks: list[Task], where: str) -> list[float]:
    """Return the time of each task over raw sockets."""
    with zmq.Context() as context:
        socket = raw_sockets(setting, context, serves=False)
        socket.connect(where)

        def exchange(task: Task) -> None:
            data = bytearray(task.length)
            for number in range(task.count):
                last = task.echoes or number == task.count - 1
                socket.send_multipart([b"answer" if last else b"", data])
                if last:
                    socket.recv()

        found = [clocked(exchange, task) for task in tasks]
        socket.send(b"end")
        socket.close()
    return found


def clocked(exchange: Callable[[Task], None], task: Task) -> float:
    """Return the seconds of a task, after a short warm-up."""
    exchange(Task(task.length, min(task.count, 20), task.echoes))
    start = time.perf_counter()
    exchange(task)
    return time.perf_counter() - start


def measured(
    serve: Callable[[str, Connection], None],
    call: Callable[[str, list[Task], str], list[float]],
    setting: str,
    tasks: list[Task],
) -> list[float]:
    """Return the times of the tasks between two new processes."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    there = spawn.Process(target=serve, args=(setting, theirs), daemon=True)
    there.start()
    try:
        where = ours.recv()
        here = spawn.Process(target=_report, args=(call, setting, tasks, where, theirs), daemon=True)
        here.start()
        found: list[float] = ours.recv()
        here.join(10)
        there.join(10)
    finally:
        there.kill()
    return found


def _report(
    call: Callable[[str, list[Task], str], list[float]],
    setting: str,
    tasks: list[Task],
    where: str,
    pipe: Connection,
) -> None:
    pipe.send(call(setting, tasks, where))


def main() -> None:
    """Measure, print, and write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--setting", action="append", choices=SETTINGS, help="setting to measure; may be given again [all]"
    )
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    tasks = [Task(length, BYTES // length, False) for length in LENGTHS] + [Task(0, ECHOES, True)]
    rows = []
    for setting in given.setting or SETTINGS:
        ours: list[list[float]] = []
        raw: list[list[float]] = []
        for _ in range(given.rounds):
            ours.append(measured(serve_endpoint, endpoint_seconds, setting, tasks))
            raw.append(measured(serve_raw, raw_seconds, LOCAL if setting == SHARED else setting, tasks))
        for at, task in enumerate(tasks):
            here, there = median(one[at] for one in ours), median(one[at] for one in raw)
            ratio = median(other[at] / one[at] for one, other in zip(ours, raw, strict=True))
            rows.append(
                {
                    "setting": setting,
                    "length": task.length,
                    "echoes": task.echoes,
                    "endpoint_seconds": here,
                    "raw_seconds": there,
                    "of_raw": ratio,
                }
            )
            if task.echoes:
                print(f"{setting:18} round trip {1e6 * here / task.count:8.1f} µs", end="")
                print(f"   raw {1e6 * there / task.count:8.1f} µs   {ratio:.2f} of raw")
            else:
                print(f"{setting:18} {task.length >> 10:8} KiB   {BYTES / here / 1e9:8.2f} GB/s", end="")
                print(f"   raw {BYTES / there / 1e9:6.2f} GB/s   {ratio:.2f} of raw", flush=True)
    if given.out is not None:
        told = document("messages", "python benchmarks/transport.py", rounds=given.rounds, rows=rows)
        (given.out / "transport.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()

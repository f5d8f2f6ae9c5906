"""Data servers in real processes: the same bits from any server, after any death."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch

from cotswold.data import Preparation, Reader, Store, open_source, prepare
from cotswold.data.loading.served_store import DatasetView, ServedStore
from cotswold.dataservice.core.request_scheduler import RequestSettings
from cotswold.dataservice.runtime import pool as data_pool
from cotswold.dataservice.runtime.batch_tensors import window_bytes
from cotswold.dataservice.runtime.client import DataClient
from cotswold.dataservice.runtime.feed import ServedFeed
from cotswold.dataservice.runtime.pool import DataPool, PoolSettings, ServerLine, open_pool
from cotswold.dataservice.runtime.remote_servers import RemoteServers, open_remote_servers
from cotswold.errors import MachineError, UserError
from cotswold.host import ForkServer, Token
from cotswold.processes.process_group import ProcessGroup
from cotswold.wire import DataServerReport

WORK = "tests.dataservice.runtime.test_pool:in_server"
BATCH = 20
ASKING = RequestSettings(
    no_server_seconds=20.0, straggler_seconds=0.1, retry_seconds=1.0, batches_per_request=1
)
"""Settings with one batch per request, so that few of the batches are prefetched."""


def in_server(store: str) -> ServedStore:
    """Return the work of a data server."""
    return ServedStore(Store(store), 1 << 20)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Make 200 numbered images of 20 x 24, whose batches just reach the size for shared memory."""
    folder = tmp_path_factory.mktemp("pool")
    numbers = np.arange(200, dtype=np.uint8)[:, None, None]
    grain = np.random.default_rng(1).integers(0, 50, (200, 20, 24))
    np.save(folder / "numbered.npy", (numbers // 2 + grain).astype(np.uint8))
    plain = Preparation((20, 24), colour="grey", per_image_standardise=False, whiten=False, dtype="uint8")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("cotswold.data.store.layout._SHARD_IMAGES_MAX", 32)
        prepare(open_source(folder / "numbered.npy"), folder / "store", plain, validation=0.0, jobs=1)
    return Store(folder / "store")


@contextmanager
def served(
    store: Store,
    fork_server: ForkServer,
    *,
    path: Path | None = None,
    token: Token | None = None,
    **chosen: object,
) -> Iterator[tuple[DataPool, Token]]:
    """Yield a pool that a thread serves."""
    token = token or Token.new()
    settings = PoolSettings(silent_seconds=3.0, beat_seconds=0.2, **chosen)  # type: ignore[arg-type]  # by name
    over, errors = Event(), []
    arguments = {"store": str(path or store.path)}
    with open_pool(settings, WORK, arguments, token=token, processes=fork_server) as pool:

        def serve() -> None:
            try:
                pool.wait(over.is_set)
            except MachineError as error:
                errors.append(error)
                pool.close()

        thread = Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield pool, token
        finally:
            over.set()
            thread.join(20)
            assert not thread.is_alive()


@contextmanager
def reading(pool: DataPool, token: Token, store: Store, asking: RequestSettings = ASKING) -> Iterator[Reader]:
    """Yield a reader of the pool."""
    with ExitStack() as held:
        client = held.enter_context(
            DataClient(token, pool.address, store=store.identity, request_settings=asking)
        )
        shape = store.shape
        feed = ServedFeed(
            client,
            DatasetView("train", 5, store=store.identity),
            window_bytes((shape.channels, shape.height, shape.width)),
        )
        reader = Reader(store, "train", BATCH, seed=5, feed=feed)
        held.callback(reader.close)
        yield reader


def expected(store: Store, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    reader = Reader(store, "train", BATCH, seed=5)
    found = [reader.next() for _ in range(count)]
    reader.close()
    return found


def check(
    reader: Reader,
    wanted: list[tuple[torch.Tensor, torch.Tensor]],
    meanwhile: Callable[[int], object] = lambda step: None,
) -> None:
    for step, (samples, labels) in enumerate(wanted):
        meanwhile(step)
        found, targets = reader.next()
        assert torch.equal(found, samples) and found.permute(2, 3, 1, 0).is_contiguous()
        assert torch.equal(targets, labels)


def pids(pool: DataPool) -> list[int]:
    return [line.pid for line in pool.status().servers if line.pid]


def kill(pid: int, number: int) -> None:
    assert pid > 0, "0 would be this process's own group"
    os.kill(pid, number)


def until(holds: Callable[[], object], seconds: float = 30.0) -> None:
    deadline, pause = time.monotonic() + seconds, Event()
    while not holds():
        assert time.monotonic() < deadline, "it takes too long"
        pause.wait(0.01)


@pytest.mark.parametrize("servers", [1, 2, 3])
def test_batches_have_the_same_bits_whatever_the_number_of_servers(
    store: Store, fork_server: ForkServer, servers: int
) -> None:
    with (
        served(store, fork_server, servers=servers, threads=2) as (pool, token),
        reading(pool, token, store) as reader,
    ):
        check(reader, expected(store, 35))
        state = reader.state_dict()
        assert (state["epoch"], state["position"]) == (3, 5)


def test_a_reader_that_takes_from_servers_goes_on_where_another_one_stood(
    store: Store, fork_server: ForkServer
) -> None:
    wanted = expected(store, 30)
    with served(store, fork_server) as (pool, token):
        with reading(pool, token, store) as reader:
            check(reader, wanted[:13])
            state = reader.state_dict()
        with reading(pool, token, store) as reader:
            reader.load_state_dict(state)
            check(reader, wanted[13:])
            reader.load_state_dict(state)
            check(reader, wanted[13:])
        until(lambda: not pool.status().trainers)


def test_servers_that_are_killed_or_stopped_change_no_bit(store: Store, fork_server: ForkServer) -> None:
    wanted = expected(store, 120)
    with served(store, fork_server, servers=2) as (pool, token), reading(pool, token, store) as reader:
        until(lambda: len(pids(pool)) == 2)
        befallen = []

        def befall(step: int) -> None:
            if step in (10, 40, 70):
                until(lambda: len(pids(pool)) == 2)
                there = pids(pool)
                befallen.append(there[step % len(there)])
                kill(befallen[-1], signal.SIGSTOP if step == 40 else signal.SIGKILL)

        check(reader, wanted, befall)
        assert len(befallen) == 3
        until(lambda: len(set(pids(pool)) - set(befallen)) == 2)  # also the stopped one is replaced


def test_a_pool_of_which_every_server_is_dead_is_an_error_and_no_hang(
    store: Store, fork_server: ForkServer
) -> None:
    asking = RequestSettings(no_server_seconds=1.0, batches_per_request=1)
    with (
        served(store, fork_server, servers=2, restarts=False) as (pool, token),
        reading(pool, token, store, asking) as reader,
    ):
        check(reader, expected(store, 5))
        until(lambda: len(pids(pool)) == 2)
        for pid in pids(pool):
            kill(pid, signal.SIGKILL)
        began = time.monotonic()
        with pytest.raises(MachineError, match=r"every data server has exited.*SIGKILL.*resume"):
            check(reader, expected(store, 35)[5:])
        assert time.monotonic() - began < 10


def test_a_reader_is_closed_at_once_though_nobody_makes_what_it_waits_for(
    store: Store, fork_server: ForkServer
) -> None:
    with served(store, fork_server, servers=1) as (pool, token), reading(pool, token, store) as reader:
        reader.next()
        until(lambda: pids(pool))
        kill(pids(pool)[0], signal.SIGSTOP)
        until(lambda: is_starved(reader))
        began = time.monotonic()
        reader.close()
        assert time.monotonic() - began < 5


def test_the_status_of_a_pool_is_whole_while_its_servers_go(
    store: Store, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = data_pool.server_line
    threads: list[Thread] = []

    def line_of(offer: DataServerReport, silent_seconds: float, process_group: ProcessGroup) -> ServerLine:
        if not threads:
            threads.append(
                Thread(target=pool._coordinator._on_client_disconnect, args=("data-server-2", "it went"))
            )
            threads[0].start()
            threads[0].join(0.5)
        return plain(offer, silent_seconds, process_group)

    with served(store, fork_server, servers=2) as (pool, _):
        until(lambda: len(pids(pool)) == 2)
        monkeypatch.setattr(data_pool, "server_line", line_of)
        assert [each.name for each in pool.status().servers] == ["data-server-1", "data-server-2"]
        threads[0].join(10)


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"servers": 0}, "at least one each, got 0 and 1"),
        ({"servers": 3, "ports": (7000, 7001)}, "3 data servers need one port each, got ports 7000-7001"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(chosen: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        PoolSettings(**chosen)


def hangs(store: str) -> ServedStore:
    """Return the work of a data server that hangs before its first message."""
    signal.pause()
    raise AssertionError("nobody wakes it")


@pytest.mark.soak
def test_a_server_that_hangs_before_it_serves_is_killed_and_trainers_hear_why_nobody_serves(
    store: Store, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.WORK", f"{__name__}:hangs")
    with (
        served(store, fork_server, servers=1, start_seconds=1.0) as (pool, token),
        DataClient(token, pool.address) as client,
        pytest.raises(
            MachineError, match=r"every data server has exited.* said nothing for 1 s, and was ended"
        ),
    ):
        client.terms()


def hangs_once(store: str, mark: str) -> ServedStore:
    """Return the work of data servers, of which the first hangs before its first message."""
    if not Path(mark).exists():
        Path(mark).touch()
        signal.pause()
    return in_server(store)


@contextmanager
def lending(
    pool: DataPool, token: Token, store: Store, fork_server: ForkServer, work: str, **arguments: str
) -> Iterator[RemoteServers]:
    """Yield a remote server of a pool, until it is closed."""
    host, port = pool.port_address.rsplit(":", 1)
    settings = PoolSettings(servers=1, silent_seconds=2.0, beat_seconds=0.2, start_seconds=4.0)
    told = {"store": str(store.path), **arguments}
    given = (settings, store.identity, work, lambda terms: told)
    with open_remote_servers((host, int(port)), *given, token=token, processes=fork_server) as lent:
        yield lent


def lent_pid(lent: RemoteServers) -> int | None:
    """Return the process of the only remote server that serves."""
    lent.proceed(0.05)
    return next((line.pid for line in lent.status().servers), None)


def test_a_remote_server_that_is_stopped_is_replaced(store: Store, fork_server: ForkServer) -> None:
    with (
        served(store, fork_server, servers=1, host="127.0.0.1") as (pool, token),
        lending(pool, token, store, fork_server, WORK) as lent,
    ):
        until(lambda: lent_pid(lent))
        stopped = lent_pid(lent)
        assert stopped is not None
        kill(stopped, signal.SIGSTOP)
        until(lambda: lent_pid(lent) not in (None, stopped), 20.0)
        assert set(lent.status().ended.values()) == {"said nothing for 2 s, and was ended"}


def test_a_remote_server_that_hangs_before_it_serves_is_replaced(
    store: Store, fork_server: ForkServer, tmp_path: Path
) -> None:
    with (
        served(store, fork_server, servers=1, host="127.0.0.1") as (pool, token),
        lending(pool, token, store, fork_server, f"{__name__}:hangs_once", mark=str(tmp_path / "m")) as lent,
    ):
        until(lambda: lent_pid(lent), 20.0)
        assert set(lent.status().ended.values()) == {"said nothing for 4 s, and was ended"}


def is_starved(reader: Reader) -> bool:
    """True if a reader waits for a batch that no server makes; existing batches are taken."""
    assert reader._prefetcher is not None and isinstance(reader._feed, ServedFeed)
    if len(reader._prefetcher):
        reader.next()
        return False
    client = reader._feed._client
    with client._lock:
        numbers = client._machine.requests.numbers
        return len(numbers) > 1 and not any(map(client._machine.requests.is_ready, numbers))


def test_a_trainer_of_another_store_is_turned_away(store: Store, fork_server: ForkServer) -> None:
    with served(store, fork_server) as (pool, token):
        until(lambda: pids(pool))
        with (
            DataClient(token, pool.address, store="another") as client,
            pytest.raises(UserError, match=r"the pool serves the store .*, not "),
        ):
            client.terms()


def test_whoever_has_another_token_is_refused(store: Store, fork_server: ForkServer) -> None:
    with (
        served(store, fork_server, servers=1) as (pool, _),
        DataClient(Token.new(), pool.address) as client,
        pytest.raises(UserError, match="token"),
    ):
        client.terms()


def test_the_end_of_a_pool_is_heard(store: Store, fork_server: ForkServer) -> None:
    with ExitStack() as pools:
        pool, token = pools.enter_context(served(store, fork_server))
        with reading(pool, token, store) as reader:
            reader.next()
            pools.close()
            with pytest.raises(MachineError, match="the pool of data servers has ended"):
                check(reader, expected(store, 60)[1:])


def test_what_lies_damaged_on_the_disk_is_said(store: Store, fork_server: ForkServer, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(store.path, broken)
    with served(store, fork_server, path=broken) as (pool, token):
        until(lambda: len(pids(pool)) == 2)
        for each in (broken / key for key in store.files if "samples/c/" in key):
            each.write_bytes(bytes(each.stat().st_size))
        with (
            reading(pool, token, store) as reader,
            pytest.raises(MachineError, match=r"cannot make a batch: .*chunk"),
        ):
            reader.next()

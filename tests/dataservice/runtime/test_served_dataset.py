"""External loops that take batches from data servers: shared epochs, their own orders, real kills."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from tests.dataservice.runtime.test_pool import in_server, kill, pids, served, store, until  # noqa: F401  # a fixture
from tests.support.dataservice.draw_loop import names
from tests.support.training.served_runs import serving
from tests.warm import PYTHON
from torch.utils.data import DataLoader

import cotswold.data
from cotswold.api.servers.served_dataset import ServedDataset
from cotswold.data import Store, StoreDataset
from cotswold.data.loading.batching import Batch
from cotswold.data.loading.order import Rows
from cotswold.data.loading.served_store import ServedStore
from cotswold.dataservice.core.shared_epochs import EpochCounts
from cotswold.dataservice.runtime.pool import DataPool
from cotswold.errors import MachineError, UserError
from cotswold.host import ForkServer, Token
from cotswold.host.token import VARIABLE

ROOT = Path(__file__).parents[3]
SAMPLES = 200


@pytest.fixture(scope="module")
def pool(store: Store, fork_server: ForkServer) -> Iterator[tuple[DataPool, Token]]:  # noqa: F811  # the fixture
    """Yield a pool for tests that leave it unchanged; each test uses a separate stream."""
    with served(store, fork_server, host="127.0.0.1", servers=2) as found:
        yield found


def connected(to: tuple[DataPool, Token], **more: Any) -> ServedDataset:
    return cotswold.data.connect(to[0].port_address, to[1], **{"batch_size": 12, **more})


def accounts(to: tuple[DataPool, Token], stream: str) -> list[EpochCounts]:
    return [each for each in to[0].status().drawn if each.stream == stream]


def everything(store: Store) -> set[str]:  # noqa: F811  # the fixture
    whole = StoreDataset(store, batch_size=50)
    found = {name for samples, _ in whole for name in names(samples)}
    assert len(found) == SAMPLES
    return found


@pytest.mark.parametrize("part", [(0, 1), (1, 3)])
def test_an_order_of_its_own_is_that_of_a_store_dataset(
    part: tuple[int, int],
    store: Store,  # noqa: F811  # the fixture
    pool: tuple[DataPool, Token],
) -> None:
    chosen = {"batch_size": 12, "seed": 7, "rank": part[0], "world_size": part[1]}
    wanted = StoreDataset(store, **chosen)  # type: ignore[arg-type]  # by name
    with connected(pool, **chosen) as found:
        for epoch in (0, 3):
            wanted.set_epoch(epoch)
            found.set_epoch(epoch)
            pairs = list(zip(found, wanted, strict=True))
            assert len(pairs) == len(wanted)
            for (x, y), (other, labels) in pairs:
                assert torch.equal(x, other) and torch.equal(y, labels)


def test_passes_in_an_order_of_its_own_are_epochs_one_after_the_other(
    store: Store,  # noqa: F811  # the fixture
    pool: tuple[DataPool, Token],
) -> None:
    wanted = StoreDataset(store, batch_size=12)
    with connected(pool) as found:
        for epoch in (0, 1, 5, 6):
            wanted.set_epoch(epoch)
            if epoch == 5:
                found.set_epoch(epoch)
            assert all(torch.equal(x, y) for (x, _), (y, _) in zip(found, wanted, strict=True)), epoch


def test_a_pass_of_this_process_tells_workers_no_epoch(pool: tuple[DataPool, Token]) -> None:
    found = connected(pool)
    next(iter(found))
    loader = DataLoader(found, batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(UserError, match="set_epoch"):
        next(iter(loader))


@pytest.mark.soak
def test_workers_of_a_loader_have_parts_of_an_order_of_its_own(
    store: Store,  # noqa: F811  # the fixture
    pool: tuple[DataPool, Token],
) -> None:
    found = connected(pool)
    found.set_epoch(2)
    loader = DataLoader(found, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    had = Counter(name for x, _ in loader for name in names(x))
    assert set(had) == everything(store) and max(had.values()) == 1


def test_two_loops_share_each_epoch(store: Store, pool: tuple[DataPool, Token]) -> None:  # noqa: F811
    had: list[list[Counter[str]]] = []

    def learn() -> None:
        with connected(pool, stream="two") as batches:
            for epoch in range(3):
                batches.set_epoch(epoch)
                mine = Counter(name for x, _ in batches for name in names(x))
                had[epoch].append(mine)

    had += [[] for _ in range(3)]
    threads = [Thread(target=learn) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    for epoch in had:
        assert len(epoch) == 2
        together = epoch[0] + epoch[1]
        assert set(together) == everything(store) and max(together.values()) == 1
    assert [(each.epoch, each.delivered, each.died, each.left_out) for each in accounts(pool, "two")] == [
        (epoch, SAMPLES, 0, 0) for epoch in range(3)
    ]


def test_a_loop_listens_at_one_of_the_ports_that_it_is_given(pool: tuple[DataPool, Token]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            connected(pool, stream="ports", ports=(port, port)) as batches,
            pytest.raises(MachineError, match=f"its only port, {port}, is taken"),
        ):
            next(iter(batches))
    with connected(pool, stream="ports", ports=(port, port)) as batches:
        assert len(next(iter(batches))[0]) == 12
        assert batches._connected().address.count(f":{port}") == 1


def test_each_pass_of_a_loop_is_the_next_epoch(pool: tuple[DataPool, Token]) -> None:
    with connected(pool, stream="passes", at_least_once=True) as batches:
        orders = [[name for x, _ in batches for name in names(x)] for _ in range(2)]
    assert orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1])
    assert [(each.delivered, each.is_over) for each in accounts(pool, "passes")] == [(SAMPLES, True)] * 2


def test_two_loops_of_one_thread_do_not_wait_for_each_other(
    store: Store,  # noqa: F811  # the fixture
    pool: tuple[DataPool, Token],
) -> None:
    with ExitStack() as held:
        both = [iter(held.enter_context(connected(pool, stream="turns"))) for _ in range(2)]
        had: Counter[str] = Counter()
        while both:
            for each in list(both):
                batch = next(each, None)
                if batch is None:
                    both.remove(each)
                else:
                    had.update(names(batch[0]))
    assert set(had) == everything(store) and max(had.values()) == 1


def test_what_a_loop_that_breaks_off_leaves_is_counted(pool: tuple[DataPool, Token]) -> None:
    with connected(pool, stream="broken off") as batches:
        for number, _ in enumerate(batches):
            if number == 4:
                break
        first = accounts(pool, "broken off")[0]
        assert (first.delivered, first.free, first.is_over) == (60, 140, False)
        assert sum(len(x) for x, _ in batches) == SAMPLES
    first, second = accounts(pool, "broken off")
    assert (first.delivered, first.left_out, first.died, first.is_over) == (60, 140, 0, True)
    assert (second.delivered, second.left_out) == (SAMPLES, 0)


def test_workers_of_a_loader_share_an_epoch(
    store: Store,  # noqa: F811  # the fixture
    pool: tuple[DataPool, Token],
) -> None:
    found = connected(pool, stream="workers")
    found.set_epoch(0)
    loader = DataLoader(found, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    had = Counter(name for x, _ in loader for name in names(x))
    assert set(had) == everything(store) and max(had.values()) == 1
    until(lambda: accounts(pool, "workers")[0].delivered == SAMPLES)


def test_workers_of_a_loader_need_to_know_the_epoch(pool: tuple[DataPool, Token]) -> None:
    loader = DataLoader(connected(pool), batch_size=None, num_workers=1, multiprocessing_context="forkserver")
    with pytest.raises(UserError, match="set_epoch"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"world_size": 2, "stream": "mine"}, "have no ranks"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"stream": ""}, "stream must not be empty"),
        ({"stream": 3}, "stream must be a str, not 3"),
        ({"batch_size": "a"}, "batch_size must be an integer, not 'a'"),
        ({"seed": 1.5}, "seed must be an integer, not 1.5"),
        ({"world_size": None}, "world_size must be an integer, not None"),
        ({"wait_seconds": "a"}, "wait_seconds must be a number"),
        ({"shuffle": "yes"}, "shuffle must be True or False"),
        ({"wait_seconds": 0.0}, "wait_seconds must be above 0"),
        ({"at_least_once": True}, "at_least_once"),
    ],
)
def test_what_cannot_be_is_refused(wrong: dict[str, object], why: str, pool: tuple[DataPool, Token]) -> None:
    with pytest.raises(UserError, match=why):
        connected(pool, **wrong)


def test_a_split_that_is_not_there_and_an_address_of_nobody_are_said(pool: tuple[DataPool, Token]) -> None:
    with (
        connected(pool, split="test") as batches,
        pytest.raises(UserError, match="the split 'test' is not served"),
    ):
        next(iter(batches))
    with connected(pool) as batches:
        assert "of the data servers at 127.0.0.1:" in repr(batches)
    with connected(pool) as batches, pytest.raises(UserError, match="epoch must be an integer, not 'a'"):
        batches.set_epoch("a")  # type: ignore[arg-type]  # it is wrong
    with pytest.raises(UserError, match="HOST:PORT"):
        cotswold.data.connect("nowhere", pool[1])
    with (
        cotswold.data.connect("127.0.0.1:9", pool[1], wait_seconds=1.0) as batches,
        pytest.raises(MachineError, match=r"the data servers at 127\.0\.0\.1:9"),
    ):
        next(iter(batches))


def test_whoever_wants_another_order_of_a_stream_is_turned_away(pool: tuple[DataPool, Token]) -> None:
    with connected(pool, stream="mine") as one, connected(pool, stream="mine", seed=1) as other:
        next(iter(one))
        with pytest.raises(MachineError, match="has seed 0, but this trainer wants seed 1; use"):
            next(iter(other))


@pytest.mark.parametrize("other", [{"shuffle": False}, {"seed": 1}, {"at_least_once": True}])
def test_whoever_disagrees_with_a_stream_is_told_so_also_where_it_names_the_epoch(
    other: dict[str, object], pool: tuple[DataPool, Token]
) -> None:
    stream = f"agreed but for {next(iter(other))}"
    with connected(pool, stream=stream) as one, connected(pool, stream=stream, **other) as two:
        one.set_epoch(0)
        next(iter(one))
        two.set_epoch(0)
        with pytest.raises(MachineError, match=f"the stream '{stream}'"):
            list(two)


def test_loops_of_a_stream_may_have_batches_of_other_sizes(
    store: Store,  # noqa: F811  # the fixture
    pool: tuple[DataPool, Token],
) -> None:
    with connected(pool, stream="sizes") as one, connected(pool, stream="sizes", batch_size=7) as two:
        one.set_epoch(0)
        two.set_epoch(0)
        few = iter(one)
        had = Counter(names(next(few)[0]))
        for batches in (two, few):
            had.update(name for x, _ in batches for name in names(x))
    assert set(had) == everything(store) and max(had.values()) == 1


class Failing(ServedStore):
    """A store with some samples that cannot be made."""

    def batches(self, view: str, epoch: int, rows: Rows, out: memoryview | None = None) -> Batch:
        if 100 in rows:
            raise UserError("no sample 100")
        return super().batches(view, epoch, rows, out)


def in_failing_server(store: str) -> ServedStore:  # noqa: F811  # by name
    """Return the work of a data server."""
    return Failing(in_server(store).store, 1 << 20)


@pytest.mark.parametrize("chosen", [{"stream": "a"}, {"stream": "a", "at_least_once": True}, {}])
def test_what_a_server_cannot_make_is_an_error_and_no_end_of_the_epoch(
    chosen: dict[str, object],
    store: Store,  # noqa: F811  # the fixture
    fork_server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.dataservice.runtime.test_pool.WORK", f"{__name__}:in_failing_server")
    with (
        served(store, fork_server, host="127.0.0.1", servers=2) as pool,
        connected(pool, **chosen) as batches,
    ):
        batches.set_epoch(0)
        for _ in range(2):
            with pytest.raises(
                MachineError, match=r"cannot make a batch: .*no sample 100; fix that, and connect again"
            ):
                list(batches)


@pytest.mark.parametrize("stream", ["broke", None])
def test_a_connection_that_breaks_is_an_error_and_no_end_of_the_epoch(
    stream: str | None, pool: tuple[DataPool, Token]
) -> None:
    with connected(pool, stream=stream, batch_size=2) as batches:
        batches.set_epoch(0)
        found = iter(batches)
        next(found)
        client = batches._connected()
        client._fail(MachineError("it broke"))
        until(lambda: not client._thread.is_alive())
        with pytest.raises(MachineError, match="it broke"):
            list(found)


@pytest.mark.parametrize("stream", ["superseded", None])
def test_a_pass_is_over_for_good_once_another_one_has_begun(
    stream: str | None, pool: tuple[DataPool, Token]
) -> None:
    with connected(pool, stream=stream) as batches:
        first = iter(batches)
        next(first)
        second = iter(batches)
        had = len(next(second)[0])
        with pytest.raises(UserError, match="another pass"):
            next(first)
        del first
        had += sum(len(x) for x, _ in second)
    assert had == SAMPLES


def test_an_epoch_of_which_nothing_is_left_is_told_once(
    pool: tuple[DataPool, Token], caplog: pytest.LogCaptureFixture
) -> None:
    with connected(pool, stream="over") as batches:
        for _ in range(2):
            assert list(batches)
    assert not caplog.records
    with connected(pool, stream="over") as batches, caplog.at_level(logging.WARNING, "cotswold"):
        for epoch in (0, 1):
            batches.set_epoch(epoch)
            assert list(batches) == []
        (told,) = caplog.records
        assert "epoch 0 of the stream 'over' has no samples left" in told.getMessage()
        batches.set_epoch(2)
        assert sum(len(x) for x, _ in batches) == SAMPLES


def test_a_loop_that_comes_late_to_an_epoch_that_it_did_not_name_is_told_nothing(
    pool: tuple[DataPool, Token], caplog: pytest.LogCaptureFixture
) -> None:
    with connected(pool, stream="late") as slow, connected(pool, stream="late") as fast:
        assert list(slow) and list(fast)
        assert list(slow) == []
    assert not caplog.records


@pytest.mark.parametrize("stream", ["closed", None])
def test_a_loop_that_has_left_does_not_come_back_by_itself(
    stream: str | None, pool: tuple[DataPool, Token]
) -> None:
    with connected(pool, stream=stream) as batches:
        next(iter(batches))
    for refused in (
        batches.terms,
        batches.__iter__,
        lambda: next(iter(DataLoader(batches, batch_size=None))),
    ):
        with pytest.raises(UserError, match="closed"):
            refused()
    batches.close()


@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGKILL, "is lost"), (signal.SIGSTOP, "not answered for 2 s")]
)
def test_a_head_that_is_killed_or_stopped_is_an_error_in_time(
    number: int,
    why: str,
    store: Store,  # noqa: F811  # the fixture
    tmp_path: Path,
) -> None:
    token = Token.new()
    with serving(store.path, "--servers", 1, folder=tmp_path, token=token.text) as head:
        head.until("data-server-1 serves")
        with cotswold.data.connect(
            head.address, token, stream="mine", batch_size=4, wait_seconds=2.0
        ) as batches:
            batches.set_epoch(0)
            found = iter(batches)
            next(found)
            head.send(number)
            until(lambda: not batches._connected()._thread.is_alive(), 5.0)  # the loop learns meanwhile
            with pytest.raises(MachineError, match=f"the head of the pool .*{why}.*, and connect again$"):
                list(found)


class Slow(ServedStore):
    """A store whose batches take a second each."""

    def batches(self, view: str, epoch: int, rows: Rows, out: memoryview | None = None) -> Batch:
        time.sleep(1.0)
        return super().batches(view, epoch, rows, out)


def in_slow_server(store: str) -> ServedStore:  # noqa: F811  # by name
    """Return the work of a data server."""
    return Slow(in_server(store).store, 1 << 20)


def test_a_short_wait_takes_neither_the_head_nor_a_slow_server_for_dead(
    store: Store,  # noqa: F811  # the fixture
    fork_server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.dataservice.runtime.test_pool.WORK", f"{__name__}:in_slow_server")
    with (
        served(store, fork_server, host="127.0.0.1", servers=1) as pool,
        connected(pool, stream="impatient", batch_size=100) as ready,
    ):
        ready.terms()
        with connected(pool, stream="impatient", batch_size=100, wait_seconds=0.7) as batches:
            assert sum(len(x) for x, _ in batches) == SAMPLES


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_loops_and_servers_that_are_killed_or_stopped_lose_and_double_nothing_that_is_not_counted(
    number: int,
    store: Store,  # noqa: F811  # the fixture
    fork_server: ForkServer,
    tmp_path: Path,
) -> None:
    with served(store, fork_server, host="127.0.0.1", servers=2) as pool, ExitStack() as held:
        files = [tmp_path / f"loop-{each}" for each in range(3)]
        environ = {**os.environ, VARIABLE: pool[1].text, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        loops = []
        for file in files:
            command = [*PYTHON, "-m", "tests.support.dataservice.draw_loop", pool[0].port_address]
            loops.append(subprocess.Popen([*command, str(file), "0.15", "0"], env=environ, cwd=ROOT))
            held.callback(loops[-1].wait)
            held.callback(loops[-1].kill)
        until(lambda: all(file.exists() and len(lines(file)) > 2 for file in files))
        kill(loops[0].pid, number)
        kill(pids(pool[0])[0], signal.SIGKILL)
        for each in loops[1:]:
            assert each.wait(60) == 0
        until(lambda: accounts(pool, "epochs")[0].dealt == 0)
        (account,) = accounts(pool, "epochs")
        had = Counter(name for file in files for line in lines(file) for name in line)
        assert set(had) <= everything(store) and max(had.values()) == 1
        assert account.is_over and not account.free and not account.left_out
        assert account.delivered + account.died == SAMPLES
        assert account.delivered <= len(had) and SAMPLES - len(had) <= account.died <= 8
        assert account.dealt_again > 0


def lines(file: Path) -> list[list[str]]:
    """Return the received batches of a loop, without an incomplete last line."""
    return [line.split() for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.soak
def test_a_loop_over_a_connection_that_has_no_name_gets_all_samples(
    store: Store,  # noqa: F811  # the fixture
    pool: tuple[DataPool, Token],
) -> None:
    found = set()
    for samples, _ in connected(pool):
        gc.collect()
        found |= set(names(samples))
    assert found == everything(store)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork in a process with threads
def test_a_fork_of_a_process_that_draws_batches_is_refused_at_once(pool: tuple[DataPool, Token]) -> None:
    with connected(pool) as served:
        batches = iter(served)
        next(batches)
        client = served._client
        assert client is not None
        read, write = os.pipe()
        with client._lock:  # as another thread may have it at the moment of the fork
            child = os.fork()
            if child == 0:
                said = []
                for use in (lambda: next(batches), client.terms, client.close):
                    try:
                        use()
                    except UserError as error:
                        said.append(str(error).partition(" is a fork of it: ")[2])
                os.write(write, "; ".join(said).encode())
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as told:
            assert told.read() == "connect again in this process; connect again in this process"
        assert os.waitpid(child, 0)[1] == 0
        next(batches)

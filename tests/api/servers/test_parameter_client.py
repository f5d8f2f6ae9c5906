"""External loops on real parameter servers: pulls, counted pushes, refusals."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.api.loops import SIZE, make
from tests.warm import PYTHON
from torch import Tensor, nn

import cotswold
import cotswold.data
from cotswold.api.servers.parameter_client import Connection, secret_of
from cotswold.api.servers.parameter_server import ServedParameters, ServedStatus
from cotswold.checkpoint import CheckpointManager
from cotswold.errors import MachineError, RunError, UserError
from cotswold.replicas.client import PushRejectedError

SHARD_BYTES = 64
ROOT = Path(__file__).parents[3]


def served(model: nn.Module, **more: Any) -> ServedParameters:
    return cotswold.serve(model, **{"learning_rate": 1.0, "shard_bytes": SHARD_BYTES, **more})


def connected(to: ServedParameters) -> Connection:
    return cotswold.connect(to.address, to.token)


def set_gradient(module: nn.Module, value: float) -> None:
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, value)


def until(status: Callable[[], ServedStatus], holds: Callable[[ServedStatus], bool]) -> ServedStatus:
    deadline = time.monotonic() + 20
    while not holds(status()):
        assert time.monotonic() < deadline, status()
        time.sleep(0.02)
    return status()


@pytest.fixture(scope="module")
def shared() -> Iterator[ServedParameters]:
    """Yield servers of gradients, for tests that leave them unchanged."""
    with served(make(), servers=2) as found:
        yield found


def weights(of: ServedParameters) -> Tensor:
    module = make()
    with connected(of) as s:
        s.pull(module)
    return next(module.parameters()).detach()


def test_a_loop_pulls_and_pushes_gradients(shared: ServedParameters) -> None:
    before = shared.status.samples
    module = make()
    with connected(shared) as s:
        s.pull(module)
        first = next(module.parameters()).detach().clone()
        set_gradient(module, 0.5)
        assert s.push(module, samples=10) == s_pushed(1)
        with torch.no_grad():
            next(module.parameters()).fill_(7.0)  # an optimiser of its own; the next pull undoes it
        s.pull(module)
        assert torch.equal(next(module.parameters()), first - 0.5)
        set_gradient(module, -0.5)
        s.push(module)
    assert torch.equal(weights(shared), first)
    until(lambda: shared.status, lambda now: now.samples == before + 10 and not now.clients)


def s_pushed(number: int, staleness: int = 0) -> object:
    from cotswold.replicas.client import PushResult

    return PushResult(number, staleness, dropped=False)


def test_staleness_is_how_many_pushes_of_others_came_between(shared: ServedParameters) -> None:
    module = make()
    with connected(shared) as one, connected(shared) as other:
        one.pull(module)
        other.pull(module)
        for sign in (1, -1, 1):
            set_gradient(module, sign)
            one.push(module)
        set_gradient(module, -1)
        assert other.push(module) == s_pushed(1, staleness=3)


def test_own_pushes_make_nothing_stale() -> None:
    dropping = served(make(), update_rule="deltas", servers=2, max_staleness=3, staleness_policy="drop")
    with dropping as found, connected(found) as s:
        module = make()
        s.pull(module)
        for number in range(1, 21):
            with torch.no_grad():
                next(module.parameters()).add_(1.0)
            assert s.push(module, samples=1) == s_pushed(number)
        assert torch.equal(weights(found), torch.full((SIZE, SIZE), 20.0))


def test_deltas_are_what_the_loop_has_moved_the_parameters_by() -> None:
    model = make()
    with served(model, update_rule="deltas", servers=2) as found, connected(found) as s:
        module = make()
        s.pull(module)
        optimiser = torch.optim.SGD(module.parameters(), 0.5)
        for _ in range(2):  # without a pull between: a delta since the last push
            set_gradient(module, 1.0)
            optimiser.step()
            s.push(module, samples=2)
        assert found.status.torn == 0
    assert torch.equal(next(model.parameters()), torch.full((SIZE, SIZE), -1.0))


@pytest.mark.parametrize("rule", ["sgd", "deltas"])
def test_what_is_dropped_is_told_counted_and_asks_for_a_pull(
    rule: str, caplog: pytest.LogCaptureFixture
) -> None:
    with served(make(), update_rule=rule, servers=2, max_staleness=0, staleness_policy="drop") as found:
        module = make()
        with connected(found) as slow, connected(found) as fast:
            for each in (slow, fast):
                each.pull(module)
            set_gradient(module, 1.0)
            with torch.no_grad():
                next(module.parameters()).add_(1.0)
            fast.push(module, samples=3)
            with caplog.at_level(logging.WARNING, "cotswold"):
                pushed = slow.push(module, samples=5)
            assert pushed.dropped and pushed.why == "stale: more than 0 updates were applied before it"
            assert (slow.dropped, slow.dropped_samples, fast.dropped) == (1, 5, 0)
            (said,) = [each.message for each in caplog.records]
            assert said.startswith("push 1 was dropped (stale: more than 0 updates were applied before it)")
            with pytest.raises(PushRejectedError, match=r"this one would be, too; pull first"):
                slow.push(module)
            slow.pull(module)
            set_gradient(module, 0.0)
            assert slow.push(module) == s_pushed(2)
            until(lambda: found.status, lambda now: now.samples == 3)
        assert torch.equal(weights(found).abs(), torch.ones(SIZE, SIZE)), "the push of the fast one"


def test_a_port_that_is_taken_is_named_with_what_to_do(shared: ServedParameters) -> None:
    with pytest.raises(
        MachineError, match=rf"port {shared.address.rpartition(':')[2]} of 127.0.0.1 is taken"
    ):
        served(make(), listen=shared.address)


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "moved"), [("momentum", -2.5), ("adagrad", -1 - 2**-0.5)])
def test_rules_of_the_servers_take_the_steps(rule: str, moved: float) -> None:
    model = make()
    with served(model, update_rule=rule, momentum=0.5) as found, connected(found) as s:
        module = make()
        for _ in range(2):
            s.pull(module)
            set_gradient(module, 1.0)
            s.push(module)
    assert torch.allclose(next(model.parameters()), torch.full((SIZE, SIZE), moved), atol=1e-6)


def test_a_clients_numbers_may_be_of_another_type(shared: ServedParameters) -> None:
    module = make().double()
    with connected(shared) as s:
        s.pull(module)
        for value in (0.25, -0.25):
            set_gradient(module, value)
            s.push(module)
    half = make().bfloat16()
    with connected(shared) as s:
        s.pull(module)
        s.pull(half)
    for mine, coarse in zip(module.parameters(), half.parameters(), strict=True):
        assert torch.equal(mine.bfloat16(), coarse)


@pytest.mark.slow
def test_killed_processes_join_as_new_clients_and_each_push_counts_once(
    tmp_path: Path,
) -> None:
    model = make()
    with served(model, servers=2) as found:
        words = [*PYTHON, "-m", "tests.support.api.loops", found.address, found.token, "1000000"]
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        start = partial(subprocess.Popen, words, stdout=subprocess.PIPE, text=True, env=environ, cwd=ROOT)
        loops = [start() for _ in range(2)]
        said = 0
        for loop in loops:
            assert loop.stdout is not None
            said += sum(bool(loop.stdout.readline()) for _ in range(20))
        until(lambda: found.status, lambda now: len(now.clients) == 2)
        for loop in loops:
            loop.send_signal(signal.SIGKILL)
            said += len(loop.communicate()[0].split())
        # whatever a loop was told is counted, once servers were asked again
        until(lambda: found.status, lambda now: not now.clients and now.samples >= said)
        with connected(found) as s:
            module = make()
            s.pull(module)
            set_gradient(module, 1.0)
            s.push(module, samples=1)
    last = found.status
    assert last.samples > said
    learnt = -next(model.parameters()).detach()
    assert last.samples <= int(learnt.min()) and int(learnt.max()) <= last.samples + last.torn
    assert last.torn <= 4, "one push of each that was killed, at most"


def test_a_module_of_other_parameters_is_named(shared: ServedParameters) -> None:
    with connected(shared) as s:
        with pytest.raises(UserError, match=r"parameter weight of 6 x 5 differs .* weight of 6 x 6"):
            s.pull(nn.Linear(5, 6, bias=False))
        with pytest.raises(UserError, match="the module has 2 parameters, but the servers have 1"):
            s.pull(nn.Linear(6, 6))


def test_what_cannot_be_pushed_is_told_and_the_connection_goes_on(shared: ServedParameters) -> None:
    module = make()
    with connected(shared) as s:
        set_gradient(module, 0.0)
        with pytest.raises(UserError, match="no parameters were pulled yet"):
            s.push(module)
        s.pull(module)
        with pytest.raises(UserError, match="samples=-1"):
            s.push(module, samples=-1)
        set_gradient(module, float("nan"))
        with pytest.raises(UserError, match="weight contains infinite or NaN numbers; nothing was sent"):
            s.push(module)
        module.zero_grad()
        with pytest.raises(UserError, match="call backward"):
            s.push(module)
        with pytest.raises(PushRejectedError, match=r"server-0 refused push 1: finite: shard 0 .*; other"):
            s._client.push(np.array([np.nan] + [0.0] * (SIZE * SIZE - 1)), 1)
        set_gradient(module, 0.0)
        s.push(module)
    with pytest.raises(UserError, match="closed; connect again"):
        s.pull(module)


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (1 << 70, "samples=1180591620717411303424; "),
        ("3", "samples must be an integer, not '3'"),
        (True, "samples must be an integer, not True"),
        (None, "not None"),
    ],
)
def test_a_number_of_samples_that_cannot_travel_is_refused_and_the_connection_goes_on(
    shared: ServedParameters, samples: Any, said: str
) -> None:
    module = make()
    with connected(shared) as s:
        s.pull(module)
        set_gradient(module, 0.0)
        with pytest.raises(UserError, match=said):
            s.push(module, samples=samples)
        assert s.push(module, samples=np.int64(0)) == s_pushed(1)  # type: ignore[arg-type]  # as NumPy counts


def test_a_sparse_gradient_is_pushed_as_the_dense_one_that_it_stands_for(shared: ServedParameters) -> None:
    before, module = weights(shared), make()
    with connected(shared) as s:
        s.pull(module)
        (weight,) = module.parameters()
        dense = torch.zeros_like(weight)
        dense[1] = 0.25
        for sign in (1, -1):
            weight.grad = (sign * dense).to_sparse()
            s.push(module)
            expected = before - dense if sign == 1 else before
            assert torch.equal(weights(shared), expected)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (nn.Linear(SIZE, SIZE, bias=False, device="meta"), "weight is on the meta device"),
        (
            nn.Linear(SIZE, SIZE, bias=False, dtype=torch.complex64),
            "weight is complex64, but servers store real",
        ),
        ("module", "take a torch.nn.Module, not a str"),
    ],
)
def test_parameters_that_are_no_real_numbers_are_refused_by_name(
    shared: ServedParameters, module: Any, said: str
) -> None:
    with connected(shared) as s, pytest.raises(UserError, match=said):
        s.pull(module)


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of a fork in a process with threads
def test_a_fork_of_a_connected_process_is_refused_at_once_and_the_parent_goes_on(
    shared: ServedParameters,
) -> None:
    module = make()
    with connected(shared) as s:
        s.pull(module)
        set_gradient(module, 0.0)
        read, write = os.pipe()
        s._client._lock.acquire()  # as another thread may have it at the moment of the fork
        child = os.fork()
        if child == 0:
            said = []
            for use in (lambda: s.pull(module), lambda: s.push(module), s.close):
                try:
                    use()
                except UserError as error:
                    said.append(str(error).partition(" is a fork of it: ")[2])
            os.write(write, "; ".join(said).encode())
            os._exit(0)
        s._client._lock.release()
        os.close(write)
        with os.fdopen(read) as told:
            assert told.read() == "connect again in this process; connect again in this process"
        assert os.waitpid(child, 0)[1] == 0
        assert s.push(module) == s_pushed(1)


def test_two_threads_at_one_connection_are_told_to_connect_once_each(shared: ServedParameters) -> None:
    module = make()
    with connected(shared) as s:
        s.pull(module)
        set_gradient(module, 0.0)
        with s._client._call_lock:  # as another thread has it, which pulls or pushes
            for use in (s.pull, s.push):
                with pytest.raises(UserError, match="use one connection per thread"):
                    use(module)
        assert s.push(module) == s_pushed(1)


def test_a_connection_that_nobody_refers_to_ends_with_its_thread_and_descriptors(
    shared: ServedParameters,
) -> None:
    s = connected(shared)
    client = s._client
    s.pull(make())
    assert client._thread.is_alive()
    del s
    client._thread.join(20)
    assert (
        not client._thread.is_alive()
        and client._endpoint._common.context.closed
        and client._wake_writer == -1
    )


@pytest.mark.parametrize(
    "address", [None, 7, b"127.0.0.1:7001", "", "127.0.0.1", "127.0.0.1:99999", "\0:7001"]
)
def test_what_is_no_address_is_told(address: Any) -> None:
    with pytest.raises(UserError, match="HOST:PORT"):
        cotswold.connect(address, "0" * 64)
    with pytest.raises(UserError, match="HOST:PORT"):
        cotswold.data.connect(address, "0" * 64)


@pytest.mark.parametrize("token", [7, b"0" * 64, ["0" * 64]])
def test_what_is_no_token_is_told_and_not_shown(token: Any) -> None:
    for connect in (cotswold.connect, cotswold.data.connect):
        with pytest.raises(UserError, match=rf"the token must be .* not a {type(token).__name__}") as found:
            connect("127.0.0.1:7001", token)
        assert "000" not in str(found.value)


@pytest.mark.parametrize("ports", [7000, (7000,), "70", (7010, 7000), (0, 5), (1, 1 << 16), ("7000", "7010")])
def test_what_is_no_pair_of_ports_is_told(ports: Any) -> None:
    for connect in (cotswold.connect, cotswold.data.connect):
        with pytest.raises(UserError, match="port"):
            connect("127.0.0.1:7001", "0" * 64, ports=ports)


@pytest.mark.parametrize("name", ["\udce9", "caf\ud800", 7])
def test_a_name_that_no_message_can_carry_is_told(name: Any) -> None:
    with pytest.raises(UserError, match="stream"):
        cotswold.data.connect("127.0.0.1:7001", "0" * 64, stream=name)


def test_unauthenticated_callers_are_refused_with_a_message_and_counted(shared: ServedParameters) -> None:
    before = shared.status.refused.get("strangers", 0)
    with pytest.raises(MachineError, match="refused the token of this process"):
        cotswold.connect(shared.address, "another token, which has 32 letters".replace(" ", "-"))
    until(lambda: shared.status, lambda now: now.refused.get("strangers", 0) > before)
    with pytest.raises(MachineError, match="cannot be reached"):
        cotswold.connect("127.0.0.1:1", shared.token)
    for address in ("nowhere", "host:", ":5", "host:99999"):
        with pytest.raises(UserError, match="write HOST:PORT"):
            cotswold.connect(address, shared.token)


@pytest.mark.slow
def test_the_end_of_the_servers_is_told_to_their_clients() -> None:
    module = make()
    found = served(make())
    with connected(found) as s:
        s.pull(module)
        found.close()
        with pytest.raises(MachineError, match="have ended: they were asked to"):
            s.pull(module)


def pull_for_ever(s: Connection, module: nn.Module) -> None:
    while True:
        s.pull(module)
        time.sleep(0.02)


@pytest.mark.slow
def test_a_server_that_dies_is_named_to_all(tmp_path: Path) -> None:
    module = make()
    events: list[tuple[str, Any]] = []
    found = served(make(), servers=2, save=tmp_path / "saved", on_event=lambda *each: events.append(each))
    with connected(found) as s:
        s.pull(module)
        os.kill(found.processes["server-1"], signal.SIGKILL)
        with pytest.raises(MachineError, match="have ended: server-1 is lost"):
            pull_for_ever(s, module)
    with pytest.raises(MachineError, match="server-1 is lost"):
        found.wait(20.0)
    assert ("exited", "server-1") in [(kind, more["name"]) for kind, more in events]


@pytest.mark.slow
def test_what_is_saved_goes_on_with_its_accumulators_on_other_servers(tmp_path: Path) -> None:
    folder = tmp_path / "saved"
    model = make()
    module = make()

    def push(found: ServedParameters) -> None:
        with connected(found) as s:
            s.pull(module)
            set_gradient(module, 1.0)
            s.push(module, samples=5)

    with served(model, update_rule="adagrad", save=folder) as found:
        push(found)
    with served(make(), update_rule="adagrad", save=folder, resume=True, servers=3) as found:
        push(found)
        until(lambda: found.status, lambda now: (now.pushes, now.samples) == (2, 10))
    again = make()
    with served(again, update_rule="adagrad", save=folder, resume=True):
        pass
    assert torch.allclose(next(again.parameters()), torch.full((SIZE, SIZE), -1 - 2**-0.5), atol=1e-6)
    with pytest.raises(RunError, match="already has checkpoints"):
        served(make(), update_rule="adagrad", save=folder)
    with pytest.raises(UserError, match="has rule adagrad, but the server has sgd"):
        served(make(), save=folder, resume=True)
    with pytest.raises(RunError, match="no checkpoint to resume from"):
        served(make(), save=tmp_path / "empty", resume=True)


def push_for_ever(found: ServedParameters, ended: threading.Event) -> None:
    module = make()
    with suppress(MachineError), connected(found) as s:
        while not ended.is_set():
            s.pull(module)
            set_gradient(module, 1.0)
            s.push(module, samples=1)


@pytest.mark.slow
def test_a_checkpoint_that_is_taken_while_loops_push_has_each_push_whole_or_not_at_all(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "saved"
    checkpoints = CheckpointManager(folder / "checkpoints", identity="cotswold serve")
    found = served(make(), servers=2, save=folder, checkpoint_minutes=0.005)
    ended = threading.Event()
    loops = [threading.Thread(target=push_for_ever, args=(found, ended)) for _ in range(2)]
    for loop in loops:
        loop.start()
    deadline = time.monotonic() + 20
    while len(checkpoints.paths()) < 2 or int(checkpoints.paths()[-1].name[:8]) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(found.processes["server-0"], signal.SIGKILL)
    with pytest.raises(MachineError, match="server-0 is lost"):
        found.wait(20.0)
    ended.set()
    for loop in loops:
        loop.join()
    newest = checkpoints.latest().checkpoint
    assert newest is not None
    weights, account = newest.read("weight"), newest.state["account"]
    assert isinstance(account, dict) and account["counted"] > 0 and account["torn"] == 0
    assert torch.equal(weights, torch.full((SIZE, SIZE), -float(account["counted"])))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"update_rule": "adam"}, "unknown rule 'adam'"),
        ({"learning_rate": 0.0}, "the learning rate must be more than 0, got 0"),
        ({"listen": "0.0.0.0:0"}, "single address of this machine"),
        ({"listen": "nowhere"}, "write HOST:PORT"),
        ({"servers": 0}, "servers = 0"),
        ({"max_staleness": -1}, "the staleness bound must be at least 0, got -1"),
        ({"token": "short"}, "the token has 5 characters; it must have at least 32"),
        ({"resume": True}, "resume needs save"),
    ],
)
def test_what_cannot_be_served_is_told(more: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        served(make(), **more)


def test_a_token_is_taken_without_the_end_of_its_line() -> None:
    assert secret_of("t" * 40 + "\n").text == "t" * 40


def test_a_module_of_several_types_cannot_be_served() -> None:
    mixed = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).double())
    with pytest.raises(UserError, match=r"float32, torch\.float64"):
        served(mixed)

from __future__ import annotations

import ctypes
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from types import MethodType, ModuleType, SimpleNamespace

import pytest
import torch
from tests.support.kernels.operations import DTYPES, KERNELS, forced, operands, run, same_bits
from tests.support.ops.layers import WIDE, random_map, random_weights
from torch import Tensor

from cotswold import ops
from cotswold.kernels.compile import engine, library
from cotswold.kernels.compile.jobs import JobHead
from cotswold.kernels.machine import execution
from cotswold.kernels.machine.processor import this_processor
from cotswold.kernels.microkernels.job import JOB
from cotswold.kernels.microkernels.kinds import Tile
from cotswold.kernels.products import autotune, compiled
from cotswold.kernels.products.problem import Overrides
from cotswold.ops import images_last

ROOT = Path(__file__).parents[3]
IMAGES = 33
pytestmark = pytest.mark.usefixtures("any_work_is_worth_threads")


@pytest.fixture(params=["torch's pool", "Python's threads"])
def pool_entered(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    name: str = request.param
    if request.param == "Python's threads":
        monkeypatch.setattr(execution, "_openmp", lambda: None)
    elif execution._openmp() is None:
        pytest.skip("torch's OpenMP has no GOMP_parallel here")
    return name


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of threads that worked on each job."""
    found: list[int] = []
    usual = execution.run_in_threads

    def counted(address: int, job: int, count: int) -> None:
        usual(address, job, count)
        found.append((ctypes.c_int64 * JOB.size).from_address(job)[JobHead.SLOTS])

    monkeypatch.setattr(execution, "run_in_threads", counted)
    return found


@pytest.fixture
def _threads_of_torch() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("operation", "few"), KERNELS)
def test_as_many_threads_as_are_asked_for_share_the_work(
    operation: str, few: bool | None, dtype: torch.dtype, entered: list[int], pool_entered: str
) -> None:
    pair = operands(operation, WIDE, IMAGES, dtype)
    run(operation, WIDE, pair, forced(5, 3, few=few))  # the kernel's trial is behind it
    entered.clear()
    found = [run(operation, WIDE, pair, forced(5, 3, count, few=few)) for count in (1, 2, 3)]
    if pool_entered == "torch's pool":
        assert entered == [1, 2, 3]
    else:  # who comes when the work is done already stays out
        assert all(1 <= came <= asked for came, asked in zip(entered, (1, 2, 3), strict=True))
    assert same_bits(found[0], found[1]) and same_bits(found[0], found[2])


@pytest.mark.usefixtures("pool_entered")
@pytest.mark.parametrize("flushed", [True, False])
def test_denormal_numbers_are_what_the_calling_thread_makes_them_on_every_thread(flushed: bool) -> None:
    x, filters = operands("product", WIDE, IMAGES, torch.float32)
    pair = x, filters * 1e-39
    run("product", WIDE, pair, forced(5, 3, 3))  # the pool's threads may start in the other mode
    if not torch.set_flush_denormal(flushed):
        pytest.skip("this processor flushes no denormal numbers")
    try:
        alone, together = (run("product", WIDE, pair, forced(5, 3, count)) for count in (1, 3))
        assert same_bits(alone, together)
    finally:
        torch.set_flush_denormal(False)
    assert bool((alone == 0).all()) == flushed


@pytest.mark.usefixtures("_threads_of_torch")
def test_torch_says_how_many_threads_there_are(entered: list[int]) -> None:
    pair = operands("product", WIDE, IMAGES, torch.float32)
    for count in (2, 1, 3):
        torch.set_num_threads(count)
        run("product", WIDE, pair)
        assert entered[-1] == count


def test_little_work_is_left_to_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "FLOPS_A_THREAD", 1e12)
    pair = operands("product", WIDE, 1, torch.float32)
    run("product", WIDE, pair, Overrides(threads=3))  # the kernel's trial is behind it
    called: list[int] = []
    monkeypatch.setattr(execution, "run_in_threads", lambda address, job, count: called.append(count))
    run("product", WIDE, pair, Overrides(threads=3))
    assert called == [1]


@pytest.mark.usefixtures("pool_entered")
def test_several_threads_of_python_compute_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # whoever comes first loads the kernels while the others ask for them
    monkeypatch.setattr(library, "_ADDRESSES", {})
    cases = [
        (operation, few, operands(operation, WIDE, IMAGES, torch.float32, seed))
        for seed, (operation, few) in enumerate(KERNELS)
    ]
    expected = [run(operation, WIDE, pair, forced(1, 1, few=few)) for operation, few, pair in cases]
    together = Barrier(len(cases))

    def work(case: int) -> bool:
        together.wait(timeout=60)
        found = []
        for turn in range(24):
            operation, few, pair = cases[(case + turn) % 4]
            found.append(run(operation, WIDE, pair, forced(5, 3, 1 + turn % 3, few=few)))
        return all(same_bits(one, expected[(case + turn) % 4]) for turn, one in enumerate(found))

    with ThreadPoolExecutor(len(cases)) as pool:
        assert list(pool.map(work, range(len(cases)))) == [True] * len(cases)


class Slow:
    """A kernel written in Python: a helper is inside while the main thread is interrupted."""

    def __init__(self, interrupts: int) -> None:
        self.interrupts, self.begun, self.left = interrupts, threading.Event(), threading.Event()
        self.interrupted = threading.Event()

    def __call__(self, job: int) -> None:
        if threading.current_thread() is threading.main_thread():
            assert self.begun.wait(60)
            self.interrupted.set()
            raise KeyboardInterrupt  # as where Ctrl-C was pressed during the call
        self.begun.set()
        assert self.interrupted.wait(60)
        for _ in range(self.interrupts):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            threading.Event().wait(0.1)
        threading.Event().wait(0.1)  # long enough for a caller that does not wait to be gone
        self.left.set()


@pytest.mark.parametrize("more", [0, 2], ids=["once", "and twice more while it is waited for"])
def test_no_thread_is_inside_a_kernel_after_ctrl_c(more: int, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Slow(more)
    monkeypatch.setattr(execution, "_openmp", lambda: None)
    monkeypatch.setattr(execution, "_member", lambda address, job: kernel)
    with pytest.raises(KeyboardInterrupt):
        execution.run_in_threads(0, 0, 2)
    assert kernel.left.is_set()


def test_who_comes_when_the_work_is_done_does_not_enter_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    late: list[Callable[[], None]] = []
    inside: list[int] = []
    monkeypatch.setattr(execution, "_openmp", lambda: None)
    monkeypatch.setattr(execution, "_member", lambda address, job: inside.append)
    monkeypatch.setattr(execution, "_thread_pool", lambda: SimpleNamespace(submit=late.append))
    execution.run_in_threads(0, 7, 3)
    for one in late:
        one()
    assert inside == [7] and len(late) == 2


FORKS = """
import os, signal, sys
import torch
from tests.support.kernels.operations import KERNELS, forced, operands, run, same_bits
from tests.support.ops.layers import WIDE
from cotswold.kernels.machine import execution
execution.FLOPS_A_THREAD = 1.0
torch.set_num_threads(2)
cases = [(kind, few, operands(kind, WIDE, 33, torch.float32)) for kind, few in KERNELS]
def results():
    return [run(kind, WIDE, pair, forced(5, 3, 2, few=few)) for kind, few, pair in cases]
if sys.argv[1] == "own":
    execution._openmp = lambda: None
torch.ones(1 << 20).exp()
expected = results()
child = os.fork()
if child == 0:
    signal.alarm(30)
    same = all(map(same_bits, results(), expected))
    # and a child of the child
    grandchild = os.fork()
    if grandchild == 0:
        signal.alarm(30)
        os._exit(0 if all(map(same_bits, results(), expected)) else 3)
    os._exit(os.waitpid(grandchild, 0)[1] or (0 if same else 4))
_, status = os.waitpid(child, 0)
assert all(map(same_bits, results(), expected))
print("child", status)
"""


@pytest.mark.soak
@pytest.mark.parametrize("pool", ["torch", "own"])
def test_a_forked_process_computes_the_same_bits(pool: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-c", FORKS, pool]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "child 0\n", done.stdout + done.stderr[-2000:]


def gradients(x: Tensor, filters: Tensor) -> list[Tensor]:
    """Return a product, and its derivatives by autograd."""
    x, filters = x.clone().requires_grad_(), filters.clone().requires_grad_()
    out = ops.local_product(x, filters, WIDE)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), [x, filters])]


@pytest.mark.usefixtures("_threads_of_torch")
def test_autograd_may_run_in_any_thread() -> None:
    torch.set_num_threads(2)
    x, filters = random_map(WIDE.input, IMAGES), random_weights(WIDE)
    expected = gradients(x, filters)
    with ThreadPoolExecutor(3) as pool:
        for found in pool.map(lambda _: gradients(x, filters), range(6)):
            assert all(map(same_bits, found, expected))


@pytest.mark.usefixtures("_threads_of_torch")
def test_compiled_code_gives_the_same_bits() -> None:
    torch.set_num_threads(2)
    x, filters = images_last(random_map(WIDE.input, IMAGES)), random_weights(WIDE).requires_grad_()

    def squared(x: Tensor, filters: Tensor) -> Tensor:
        out: Tensor = ops.local_product(x, filters, WIDE)
        return out.square()

    compiled = torch.compile(squared, fullgraph=True, backend="aot_eager")
    found, expected = compiled(x, filters), squared(x, filters)
    assert same_bits(found.detach(), expected.detach())
    (gradient,) = torch.autograd.grad(found.sum(), filters)
    (wanted,) = torch.autograd.grad(expected.sum(), filters)
    assert same_bits(gradient, wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_forked_while_another_thread_compiles_compiles_too() -> None:
    here = this_processor()
    assert here is not None
    started = threading.Event()

    def compile_for_long() -> None:
        for rows in range(1, 4):
            started.set()
            compiled.kernel("adjoint", "float64", Tile(rows, 5), here)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of a fork in a process with threads
        worker = threading.Thread(target=compile_for_long)
        worker.start()
        started.wait(60)
        child = os.fork()
    if child == 0:
        try:
            compiled.kernel("adjoint", "float64", Tile(1, 6), here)
            os._exit(7)
        finally:
            os._exit(1)
    worker.join()
    until = time.monotonic() + 60
    done, status = 0, 0
    while done == 0 and time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        threading.Event().wait(0.01)
    if done == 0:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 7


@pytest.mark.parametrize("module", [engine, library, autotune])
def test_each_module_registers_its_own_lock_for_forks(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []

    def register(before: MethodType | None = None, **_: object) -> None:
        if before is not None:
            taken.append(before.__self__)

    monkeypatch.setattr(os, "register_at_fork", register, raising=False)
    assert module.__file__ is not None
    found = runpy.run_path(module.__file__)
    assert taken == [found["_LOCK"] if module is autotune else found["LOCK"]]

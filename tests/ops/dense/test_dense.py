from __future__ import annotations

import time
from collections.abc import Iterable
from math import fsum
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cotswold.errors import UserError
from cotswold.nn import DenseNetwork
from cotswold.ops.dense import DenseLoss, DenseOutput, compiled
from cotswold.ops.dense import autotune as ways
from cotswold.ops.dense import torch_backend as library

COMBINED: list[tuple[DenseOutput, DenseLoss]] = [
    ("tanh", "squared_error"),
    ("sigmoid", "squared_error"),
    ("softmax", "squared_error"),
    ("identity", "squared_error"),
    ("softmax", "cross_entropy"),
    ("sigmoid", "cross_entropy"),
]
SIZES = (23, 40, 131)
"""Sizes with three groups of outputs."""


def network(output: DenseOutput = "tanh", loss: DenseLoss = "squared_error") -> DenseNetwork:
    return DenseNetwork(SIZES, "tanh", output, loss, deterministic=True)


def operands(samples: int, classes: bool, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    size = network().size
    parameters = torch.randn(size, generator=generator, dtype=dtype) / 4
    inputs = torch.randn(SIZES[0], samples, generator=generator, dtype=dtype)
    if classes:
        return parameters, inputs, torch.randint(SIZES[-1], (samples,), generator=generator)
    return parameters, inputs, torch.rand(SIZES[-1], samples, generator=generator, dtype=dtype)


def evaluated(of: DenseNetwork, given: tuple[Tensor, Tensor, Tensor]) -> tuple[float, Tensor]:
    gradient = torch.zeros(of.size, dtype=given[0].dtype)
    value, _ = of.add(*given, gradient)
    return value, gradient


@pytest.fixture
def threads() -> object:
    """Restore the number of threads after the test."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize(("output", "loss"), COMBINED)
def test_threads_change_no_bit(
    output: DenseOutput, loss: DenseLoss, classes: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cotswold.kernels.machine.execution.FLOPS_A_THREAD", 1.0)
    monkeypatch.setattr("cotswold.kernels.machine.execution.SERIAL_BELOW", 1)
    of, given = network(output, loss), operands(397, classes, dtype)
    torch.set_num_threads(1)
    value, gradient = evaluated(of, given)
    for count in (2, 3):
        torch.set_num_threads(count)
        again, other = evaluated(of, given)
        assert again == value and torch.equal(other, gradient)


@pytest.mark.parametrize(
    ("output", "loss", "classes"),
    [(*COMBINED[i], classes) for i in (0, 1, 3) for classes in (True, False)] + [(*COMBINED[4], True)],
)
def test_a_pattern_has_the_same_loss_alone_and_in_any_batch(
    output: DenseOutput, loss: DenseLoss, classes: bool
) -> None:
    of, (parameters, inputs, targets) = network(output, loss), operands(67, classes, torch.float32)
    alone = [of.add(parameters, inputs[:, i : i + 1], targets[..., i : i + 1])[0] for i in range(67)]
    assert of.add(parameters, inputs, targets)[0] == fsum(alone)
    assert of.add(parameters, inputs[:, 5:40], targets[..., 5:40])[0] == fsum(alone[5:40])
    outputs = of.outputs(parameters, inputs)
    for i in (0, 16, 66):
        assert torch.equal(of.outputs(parameters, inputs[:, i : i + 1])[:, 0], outputs[:, i])


def test_gradients_by_few_patterns_do_not_depend_on_how_inputs_lie() -> None:
    of, (parameters, inputs, classes) = network(), operands(67, True, torch.float32)
    value, gradient = evaluated(of, (parameters, inputs, classes))
    rows = inputs.t().contiguous().t()
    apart = torch.full((SIZES[0], 90), torch.nan)
    apart[:, 3:70] = inputs
    for one in (rows, apart[:, 3:70]):
        again, other = evaluated(of, (parameters, one, classes.to(torch.int16)))
        assert again == value and torch.equal(other, gradient)


@pytest.mark.parametrize("samples", [384, 385, 1000])
def test_more_patterns_than_a_chunk_are_all_counted_once(samples: int) -> None:
    of, given = network(), operands(samples, True, torch.float64)
    value, gradient = evaluated(of, given)
    way = library.add(library.TorchProducts(), of._spec, *given, expected := torch.zeros(of.size).double())
    assert way[0] == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(gradient, expected)


def test_every_way_computes_the_same() -> None:
    of, given = network(), operands(50, True, torch.float32)
    known = ways.backends(given[0])
    assert next(iter(known)) == ways.COMPILED and ways.TORCH in known
    results = {}
    for name, way in known.items():
        gradient = torch.zeros(of.size)
        results[name] = (*way(of._spec, *given, gradient), gradient)
    for value, right, gradient in results.values():
        assert value == pytest.approx(results[ways.COMPILED][0], rel=1e-5)
        assert right == results[ways.COMPILED][1]
        torch.testing.assert_close(gradient, results[ways.COMPILED][2], rtol=1e-3, atol=1e-3)


def test_the_fastest_way_is_taken_where_it_is_clearly_faster() -> None:
    def chosen(seconds: dict[str, float]) -> str:
        now = 0.0

        def taking(each: float) -> None:
            nonlocal now
            now += each

        return ways.choose_fastest(
            {name: lambda each=each: taking(each) for name, each in seconds.items()},  # type: ignore[misc]  # defaults bind
            lambda: now,
        )

    assert chosen({"kernels": 1.0, "oneDNN": 0.9, "torch.mm": 2.0}) == "oneDNN"
    assert chosen({"kernels": 1.0, "oneDNN": 0.99, "torch.mm": 2.0}) == "kernels"


def test_a_network_is_measured_once_and_nothing_measured_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways, "WORTH_FLOPS", 0)
    monkeypatch.setattr(ways, "CHOICES", {})
    of = DenseNetwork(SIZES)
    given = operands(50, True, torch.float32)
    _, expected = evaluated(network(), given)
    _, found = evaluated(of, given)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert len(ways.CHOICES) == 1
    monkeypatch.setattr(ways, "choose_fastest", None)
    evaluated(of, given)


def test_what_another_process_measured_counts_for_a_day(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COTSWOLD_CACHE", str(tmp_path))
    monkeypatch.setattr(ways, "WORTH_FLOPS", 0)
    asked: list[str] = []

    def found(names: Iterable[str], clock: object) -> str:
        asked.append(ways.TORCH)
        return ways.TORCH

    monkeypatch.setattr(ways, "choose_fastest", found)
    given = operands(50, True, torch.float32)
    now = time.time()
    for day, measured in ((0.0, 1), (0.9, 1), (1.1, 2), (-1.0, 3)):
        monkeypatch.setattr(ways, "CHOICES", {})  # as another process would begin
        then = now + 86400 * day
        monkeypatch.setattr(time, "time", lambda then=then: then)
        evaluated(DenseNetwork(SIZES), given)
        assert (list(ways.CHOICES.values()), len(asked)) == ([ways.TORCH], measured)
    (remembered,) = tmp_path.glob("dense-*.json")
    remembered.write_bytes(b"no choice")
    monkeypatch.setattr(ways, "CHOICES", {})
    evaluated(DenseNetwork(SIZES), given)
    assert len(asked) == 4


def test_without_kernels_libraries_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    given = operands(50, True, torch.float32)
    value, expected = evaluated(network(), given)
    monkeypatch.setenv("COTSWOLD_KERNELS", "torch")
    monkeypatch.setattr(compiled, "add", None)
    again, found = evaluated(network(), given)
    assert again == pytest.approx(value, rel=1e-5)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)
    assert network().outputs(*given[:2]).shape == (131, 50)


def test_a_kernel_that_fails_leaves_no_part_of_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    from cotswold.kernels import available

    given = operands(50, True, torch.float32)
    _, expected = evaluated(network(), given)
    monkeypatch.setattr(available, "_failures", [])
    monkeypatch.setattr(compiled, "_TESTED_KERNELS", set())

    def broken(*_: object) -> None:
        raise available.WrongKernelError("the kernel computes wrongly")

    monkeypatch.setattr(compiled, "backward", broken)
    gradient = torch.zeros(network().size)
    with pytest.warns(RuntimeWarning, match="computes wrongly"):
        network().add(*given, gradient)
    torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3)


def test_operands_on_several_devices_are_named() -> None:
    of, (parameters, inputs, targets) = network(), operands(5, True, torch.float32)
    with pytest.raises(UserError, match="inputs must be on the device of the parameters, cpu, got meta"):
        of.add(parameters, inputs.to("meta"), targets)
    with pytest.raises(UserError, match="inputs must be on the device of the parameters, cpu, got meta"):
        of.outputs(parameters, inputs.to("meta"))
    values = torch.empty(SIZES[-1], 5, device="meta")
    with pytest.raises(UserError, match="targets must be on the device of the parameters"):
        of.add(parameters, inputs, values)
    with pytest.raises(UserError, match="the gradient must be contiguous and on the CPU or a CUDA device"):
        of.add(parameters, inputs, targets, parameters.to("meta"))


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() == 0, reason="no CUDA device")
@pytest.mark.parametrize("classes", [True, False])
@pytest.mark.parametrize(("output", "loss"), COMBINED)
def test_a_network_on_a_cuda_device_agrees_with_the_cpu(
    output: DenseOutput, loss: DenseLoss, classes: bool
) -> None:
    of, given = network(output, loss), operands(397, classes, torch.float64)
    value, gradient = evaluated(of, given)
    there = tuple(one.cuda() for one in given)
    learnt = torch.zeros_like(there[0])
    found, right = of.add(there[0], there[1], there[2], learnt)
    assert found == pytest.approx(value, rel=1e-12)
    assert right == of.add(*given, None)[1]
    torch.testing.assert_close(learnt.cpu(), gradient, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        of.outputs(there[0], there[1]).cpu(), of.outputs(given[0], given[1]), rtol=1e-10, atol=1e-10
    )

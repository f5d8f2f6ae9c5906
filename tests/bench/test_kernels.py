import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.bench.small_cases import SMALLEST, lethal, small_layer, small_stack

from cotswold.bench.case import Case, select_cases
from cotswold.bench.kernels import extra, first_use, layers, narrow, perceptron, smoothing, stacks
from cotswold.bench.kernels.baseline_jax import JAX
from cotswold.bench.kernels.baselines import AUTOGRAD, UNFOLD
from cotswold.bench.kernels.cases import GROUPS, cases, explainable, quick_cases
from cotswold.bench.kernels.run import kernels
from cotswold.bench.kernels.shapes import Perceptron, Shape, paper_shapes, untied_shapes
from cotswold.bench.measure import Spread
from cotswold.bench.row import COTSWOLD, Row
from cotswold.errors import MachineError, UserError
from cotswold.geometry import Smoothing

BOTH_WAYS = ("", ", backward")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _bars(rows: list[Row]) -> dict[str, list[float | None]]:
    return {row.key.operation: [verdict.bar for verdict in row.verdicts] for row in rows if row.verdicts}


def test_the_products_and_the_step_of_a_stack_have_their_shares_of_the_dense_product() -> None:
    rows = stacks.measured(replace(small_stack(), group="paper"), SMALLEST)
    assert _bars(rows) == {"Wx": [0.9], "W'x": [0.85], "δx'": [0.9], "stack_step": [0.75]}
    dense = rows[-1]
    assert {"torch.mm", "NumPy"} <= set(dense.figures) and not dense.verdicts


def test_a_share_is_our_rate_over_that_of_the_fastest_dense_product() -> None:
    row, *_, dense = stacks.measured(small_stack(), SMALLEST)
    (verdict,) = row.verdicts
    assert verdict.against == min(dense.samples, key=lambda by: sum(dense.samples[by]))  # of two rounds
    shares = [
        ours / most
        for ours, most in zip(
            (small_stack().flops / taken for taken in row.samples[COTSWOLD]),
            (2 * 32**3 / taken for taken in dense.samples[verdict.against]),
            strict=True,
        )
    ]
    assert verdict.ratio.least == pytest.approx(min(shares))


def test_a_step_is_counted_as_five_products() -> None:
    rows = {row.key.operation: row for row in stacks.measured(small_stack(), SMALLEST)}
    assert rows["stack_step"].facts["work"] == 5 * rows["Wx"].facts["work"]  # type: ignore[operator]  # a count


def test_untied_layers_are_four_times_as_fast_as_the_better_baseline_and_few_images_never_slower() -> None:
    rows = layers.measured(small_layer(), SMALLEST)
    assert _bars(rows) == {"forward": [4.0], "forward + backward": [4.0]}
    forward, both = rows
    assert both.facts["work"] == 3 * forward.facts["work"]  # type: ignore[operator]  # a count
    baselines = {by: taken for by, taken in forward.samples.items() if by in (UNFOLD, JAX)}
    assert forward.verdicts[0].against == min(
        baselines, key=lambda by: Spread.from_samples(baselines[by]).median
    )
    few = layers.measured(replace(small_layer(), group="few", images=1), SMALLEST)
    assert _bars(few) == {"forward": [1.0], "forward + backward": [1.0]}


def test_bunyips_network_is_never_slower_than_autograd_and_has_its_share_of_the_dense_product() -> None:
    rows = perceptron.measured(Perceptron(3, 4, 5, 6), SMALLEST)
    assert _bars(rows) == {
        "value and gradient": [0.85, 1.0],
        "value and gradient, deterministic": [0.8, 1.0],
    }
    value = next(row for row in rows if row.key.operation == "value and gradient")
    assert {verdict.against for verdict in value.verdicts} == {AUTOGRAD, *_ceilings(value)}


def _ceilings(row: Row) -> set[str]:
    return {name.removeprefix("ceiling, ") for name in row.figures if name.startswith("ceiling, ")}


def test_the_curve_has_every_library_and_no_bar() -> None:
    (row,) = perceptron.curve(16, SMALLEST)
    assert {COTSWOLD, "torch.mm", "NumPy"} <= set(row.figures)
    assert [verdict.bar for verdict in row.verdicts] == [None]
    assert row.facts["work"] == 2 * 16**3


@pytest.mark.parametrize(("cache", "bar"), [(0, 0.6), (1 << 30, None)])
def test_passes_over_memory_have_bars_where_no_cache_holds_them(
    cache: int, bar: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smoothing, "CACHE_BYTES", cache)
    rows = smoothing.measured(small_stack(), SMALLEST)
    names = ("filter norms", "L2 pooling", "contrast normalisation")
    assert _bars(rows) == {name + way: [bar] for name in names for way in BOTH_WAYS}
    assert {row.unit for row in rows} == {"GB/s"}


def test_a_stack_without_normalisation_measures_none() -> None:
    shape = small_stack()
    assert shape.stack is not None
    plain = replace(shape, stack=replace(shape.stack, norm=Smoothing(1)))
    assert "contrast normalisation" not in {one.name for one in smoothing.memory_passes(plain)}


def test_bytes_of_a_pass_are_its_maps_in_and_out() -> None:
    shape = small_stack()
    assert shape.stack is not None
    forward, backward = smoothing.memory_passes(shape)[2:4]
    maps = 4 * 4 * (shape.stack.responses.size + shape.stack.pooled.size)
    assert forward.bytes == maps
    assert backward.bytes == maps + 4 * 4 * shape.stack.responses.size


@pytest.mark.parametrize(("flags", "bars"), [(["avx512_bf16"], [1.5, 0.6]), (["avx512f"], [None])])
def test_bfloat16_has_bars_where_the_processor_has_instructions_for_it(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], bars: list[float | None]
) -> None:
    monkeypatch.setattr(narrow, "describe_environment", lambda: {"processor_flags": flags})
    rows = narrow.measured(small_stack(), SMALLEST)
    assert _bars(rows) == dict.fromkeys(("Wx", "W'x", "δx'"), bars)
    assert bool(rows[0].note) is (bars[0] is None)


def test_extra_memory_is_what_is_held_beside_operands_and_results() -> None:
    def act() -> torch.Tensor:
        scratch = torch.ones(100_000)
        return scratch[:10].clone()

    assert 400_000 <= extra.extra_bytes(act) <= 410_000


def test_memory_of_plans_and_of_anything_that_python_holds_counts() -> None:
    assert extra.extra_bytes(lambda: len(bytearray(300_000))) >= 300_000


def test_extra_memory_of_a_layer_is_limited_by_that_of_unfold() -> None:
    rows = extra.measured(small_layer(), SMALLEST)
    assert _bars(rows) == {"forward": [0.1], "forward + backward": [0.1]}
    assert rows[0].verdicts[0].sense == "at most"


def test_a_step_holds_what_is_counted_and_little_more() -> None:
    (row,) = extra.measured(small_stack(), SMALLEST)
    assert row.verdicts[0].bar == 1.1 and row.verdicts[0].sense == "at most"


def test_the_first_calls_of_a_process_are_told_by_product() -> None:
    found = first_use.first_calls(small_layer())
    assert set(found) == {"Wx", "W'x", "δx'", first_use.LIBRARIES}
    assert all(seconds >= 0 for seconds in found.values())


def test_a_first_use_is_measured_compiled_tuned_and_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    caches: list[tuple[str, str]] = []

    def told(which: str, cache: str) -> dict[str, float]:
        caches.append((which, cache))
        return {"Wx": 0.5, first_use.LIBRARIES: 9.0}

    monkeypatch.setattr(first_use, "_in_new_process", told)
    monkeypatch.setattr(first_use, "backend", lambda: "llvm")
    rows = first_use.measured(("Wx",), SMALLEST)
    assert [(row.key.shape, row.verdicts[0].meets_bar) for row in rows if row.verdicts[0].bar] == [
        ("compile", True),
        ("compile and measure tiles", True),
        ("load", False),
    ]
    # what is loaded is what another process has left; what is compiled is not
    (_, compiled), (_, tuned), (_, loaded) = caches
    assert tuned == loaded != compiled


def test_the_result_is_left_whenever_there_is_more(tmp_path: Path) -> None:
    small: list[Case[Any]] = [
        Case("curve", "8 x 8", perceptron.curve, 8),
        Case("curve", "9 x 9", perceptron.curve, 9, is_measured_once=True),
    ]
    said: list[str] = []
    left: list[str] = []
    found = kernels(
        small,
        [1],
        SMALLEST,
        "cotswold bench kernels",
        said.append,
        lambda some: left.append(json.dumps(some)),
    )
    assert said == ["1 of 2, on 1 thread: curve, 8 x 8", "2 of 2, on 1 thread: curve, 9 x 9"]
    first, last = map(json.loads, left)
    assert (first["complete"], last["complete"]) == (False, True)
    assert [row["shape"] for row in first["rows"]] == ["8 x 8"]
    assert last["rows"] == json.loads(json.dumps(found))["rows"]
    assert last["machine"]["versions"]["torch"] and "512 MiB" in last["allocator"]
    seconds = last["rows"][0]["seconds"]
    assert min(map(min, seconds.values())) > 0 and len(seconds[COTSWOLD]) == 2


def test_a_measurement_that_kills_its_process_is_named() -> None:
    deadly: list[Case[Any]] = [Case("curve", "the deadly one", lethal, 9)]
    with pytest.raises(MachineError, match="the deadly one"):
        kernels(deadly, [1], SMALLEST, "cotswold bench kernels", lambda _: None, lambda _: None)


def test_the_table_of_trials_has_every_group() -> None:
    assert tuple(dict.fromkeys(one.group for one in cases())) == GROUPS
    assert {one.group for one in quick_cases()} == set(GROUPS) - {"recipe"}


def test_the_shapes_are_the_promised_ones() -> None:
    untied = untied_shapes()
    assert {shape.layer.y.size for shape in untied} == {3, 5, 7}
    assert {shape.layer.input.channels for shape in untied} == {16, 32, 64}
    assert all(shape.layer.neurons == shape.layer.depth for shape in untied)
    assert {32, 256} <= {shape.images for shape in untied} <= set(range(32, 257))
    papers = [
        (
            shape.layer.y.size,
            shape.layer.y.stride,
            shape.layer.input.channels,
            shape.layer.neurons,
            shape.images,
        )
        for shape in paper_shapes()
    ]
    assert papers == [(20, 4, 3, 128, 96), (20, 4, 8, 128, 96), (32, 4, 18, 288, 96)]


def test_a_part_is_named_by_group_and_text() -> None:
    every = cases()
    assert {one.group for one in select_cases(every, ["few", "curve"], "", GROUPS)} == {"few", "curve"}
    assert [one.name for one in select_cases(every, ["curve"], "2048", GROUPS)] == ["2048 x 2048"]
    with pytest.raises(UserError, match="groups are paper, recipe"):
        select_cases(every, ["fast"], "", GROUPS)
    with pytest.raises(UserError, match="another --match"):
        select_cases(every, [], "nobody's", GROUPS)


def test_every_shape_of_the_table_can_be_explained() -> None:
    named = {(shape.name, shape.images) for shape in explainable()}
    subjects = [one.subject for one in cases() if isinstance(one.subject, Shape)]
    assert {(shape.name, shape.images) for shape in subjects} <= named

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from math import ceil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.kernels.cuda_layers import (
    ENVIRONMENT,
    NO_DEVICE,
    NO_TRITON,
    ROOT,
    Device,
    Interpreter,
    Runner,
    Sides,
)
from tests.support.ops import reference
from tests.support.ops.layers import DEEP, ODD, PLAIN, SPARSE, layers, random_map, random_weights
from torch import Tensor

from cotswold.errors import GeometryError
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels import cuda
from cotswold.kernels.cuda import launch, tiles
from cotswold.kernels.cuda.launch import is_interpreted
from cotswold.ops import images_last
from cotswold.ops.memory_format import empty_map

FULL = BlockLocal(MapShape(2, 5, 4), Window(5), Window(4), rows=1, columns=1, depth=11)
"""A fully connected layer."""
SMALL: Sides = {"NEURONS": 4, "IMAGES": 4, "PLACES": 8, "DEPTH": 8}
DTYPES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2**-7}
SIDES = st.fixed_dictionaries(
    {side: st.sampled_from([4, 8, 32]) for side in ("NEURONS", "IMAGES", "PLACES", "DEPTH")}
)
PLACES = [
    pytest.param("interpreter", marks=NO_TRITON),
    pytest.param("device", marks=[pytest.mark.cuda, NO_TRITON, NO_DEVICE]),
]


@pytest.fixture(scope="module", params=PLACES)
def run(request: pytest.FixtureRequest) -> Iterator[Runner]:
    if request.param == "device":
        yield Device()
        return
    interpreter = Interpreter()
    yield interpreter
    interpreter.close()


def close(a: Tensor, b: Tensor, rtol: float = 1e-12) -> None:
    torch.testing.assert_close(a.to(torch.float64), b, rtol=rtol, atol=rtol * max(1.0, float(b.abs().max())))


def unwritten(like: Tensor, layer: BlockLocal, operation: str, images: int) -> Tensor:
    """Return an operation's output before it is written: NaN everywhere."""
    if operation == "outer":
        return torch.full(layer.filters_shape, float("nan"), dtype=like.dtype)
    shape = layer.output if operation == "product" else layer.input
    return empty_map(like, images, shape).fill_(float("nan"))


def operands(
    layer: BlockLocal, operation: str, images: int, dtype: torch.dtype = torch.float64
) -> list[Tensor]:
    """Return random operands of an operation, and an unwritten result."""
    x = images_last(random_map(layer.input, images, dtype=dtype))
    y = images_last(random_map(layer.output, images, seed=2, dtype=dtype))
    filters = random_weights(layer, dtype=dtype)
    first = {"product": [x, filters], "adjoint": [y, filters], "outer": [y, x]}[operation]
    return [*first, unwritten(x, layer, operation, images)]


def result(
    run: Runner, operation: str, layer: BlockLocal, handed: list[Tensor], sides: Sides = SMALL
) -> Tensor:
    return run(operation, layer, handed, sides)[-1]


def expected(operation: str, layer: BlockLocal, handed: list[Tensor]) -> Tensor:
    values: Tensor = getattr(reference, f"local_{operation}")(*handed[:-1], layer)
    return values


OPERATIONS = ["product", "adjoint", "outer"]
FEW_BLOCKS = layers().filter(lambda layer: layer.grid[0] * layer.grid[1] <= 30)
TURNS = 100
"""Most turns of a program's loop; the interpreter takes about 10 ms per turn."""


def affordable(layer: BlockLocal, images: int, sides: Sides) -> Sides:
    """Return ``sides``, doubled until no operation takes many more turns than there are blocks."""
    least = min(sides.values())
    tiles_a_block = ceil(layer.neurons / least) * ceil(images / least) * ceil(layer.fan_in / least)
    if least >= 32 or layer.grid[0] * layer.grid[1] * tiles_a_block <= TURNS:
        return sides
    return affordable(layer, images, {name: 2 * side for name, side in sides.items()})


@given(layer=FEW_BLOCKS, images=st.integers(1, 9), sides=SIDES)
@settings(max_examples=12, deadline=None)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_random_layer_in_a_random_tile_equals_the_reference(
    run: Runner, operation: str, layer: BlockLocal, images: int, sides: Sides
) -> None:
    handed = operands(layer, operation, images)
    tile = affordable(layer, images, sides)
    close(result(run, operation, layer, handed, tile), expected(operation, layer, handed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layer", [ODD, PLAIN, FULL])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_type_equals_the_reference(
    run: Runner, operation: str, layer: BlockLocal, dtype: torch.dtype
) -> None:
    handed = operands(layer, operation, 5, dtype)
    sides: Sides = {"NEURONS": 16, "IMAGES": 8, "PLACES": 32, "DEPTH": 16}
    close(result(run, operation, layer, handed, sides), expected(operation, layer, handed), DTYPES[dtype])


@pytest.mark.cuda
@NO_TRITON
@NO_DEVICE
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_tuned_tile_equals_the_reference(operation: str) -> None:
    handed = operands(PLAIN, operation, 37, torch.float32)
    close(result(Device(), operation, PLAIN, handed, {}), expected(operation, PLAIN, handed), 1e-5)


@pytest.mark.cuda
@NO_TRITON
@NO_DEVICE
def test_a_second_process_does_not_tune_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime.autotuner import Autotuner

    handed = operands(PLAIN, "product", 37, torch.float32)
    first = result(Device(), "product", PLAIN, handed, {})
    launch._kernel.cache_clear()  # as in a new process
    monkeypatch.setattr(Autotuner, "_bench", lambda *args, **kwargs: pytest.fail("tuned again"))
    assert torch.equal(result(Device(), "product", PLAIN, handed, {}), first)


@given(layer=FEW_BLOCKS)
@settings(max_examples=6, deadline=None)
def test_the_products_are_each_others_adjoints(run: Runner, layer: BlockLocal) -> None:
    sides = affordable(layer, 3, SMALL)
    x, filters, onto = operands(layer, "product", 3)
    y, _, back = operands(layer, "adjoint", 3)
    gradient = unwritten(x, layer, "outer", 3)
    through_output = (y * result(run, "product", layer, [x, filters, onto], sides)).sum()
    close(through_output, (x * result(run, "adjoint", layer, [y, filters, back], sides)).sum(), 1e-10)
    close(through_output, (filters * result(run, "outer", layer, [y, x, gradient], sides)).sum(), 1e-10)


def amid(values: Tensor, around: float) -> Tensor:
    """Return the same map as a slice of a larger batch and image, filled with ``around``."""
    images, channels, height, width = values.shape
    large = torch.full((height + 2, width + 3, channels, images + 5), around, dtype=values.dtype)
    view = large.permute(3, 2, 0, 1)[2:-3, :, 1:-1, 1:-2]
    view.copy_(values)
    return view


@pytest.mark.parametrize("layer", [ODD, SPARSE, DEEP])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_slices_of_batches_and_images_are_read_and_written_in_place(
    run: Runner, operation: str, layer: BlockLocal
) -> None:
    handed = operands(layer, operation, 3)
    maps = [amid(tensor, float("nan")) if tensor.dim() == 4 else tensor for tensor in handed]
    written = result(run, operation, layer, maps)
    close(written, expected(operation, layer, handed))
    if operation != "outer":
        assert written.stride() == maps[-1].stride()
        memory = torch.empty(0, dtype=written.dtype)
        memory.set_(written.untyped_storage())
        assert int((~memory.isnan()).sum()) == written.numel()


def test_weights_that_meet_only_padding_are_zero_whatever_delta_is(run: Runner) -> None:
    delta, x, out = operands(DEEP, "outer", 3)
    meets = expected("outer", DEEP, [torch.ones_like(delta), torch.ones_like(x), out]) != 0
    gradient = result(run, "outer", DEEP, [torch.full_like(delta, float("inf")), x, out])
    assert not meets.all()
    assert bool((gradient[~meets] == 0).all())
    assert not bool(gradient[meets].isfinite().any())


@pytest.mark.parametrize("operation", ["product", "adjoint"])
@pytest.mark.parametrize("layer", [ODD, PLAIN])
def test_an_infinity_reaches_only_the_results_that_it_belongs_to(
    run: Runner, operation: str, layer: BlockLocal
) -> None:
    values, filters, out = operands(layer, operation, 3)
    filters = filters.abs() + 1
    mark = torch.zeros_like(values)
    mark[1, 0, 2, 2] = 1
    reached = expected(operation, layer, [mark, filters, out]) != 0
    spoilt = result(run, operation, layer, [torch.where(mark == 1, float("inf"), values), filters, out])
    assert torch.equal(spoilt.isinf(), reached)
    assert not bool(spoilt.isnan().any())


def test_a_batch_without_images_has_a_gradient_of_zero(run: Runner) -> None:
    delta, x, out = operands(ODD, "outer", 0)
    assert bool((result(run, "outer", ODD, [delta, x, out]) == 0).all())
    assert result(run, "product", ODD, operands(ODD, "product", 0)).shape[0] == 0


def beyond(run: Runner, operation: str) -> None:
    """Check maps of three rows so far apart that 32 bits count the elements up to the second row only."""
    layer = BlockLocal(MapShape(2, 3, 2), Window(3), Window(1), rows=3, columns=1, depth=2)
    pitch = 2**30 + 8
    for place in {"product": (0, 2), "adjoint": (0, 2), "outer": (0, 1)}[operation]:
        handed = operands(layer, operation, 3, torch.bfloat16)
        right = expected(operation, layer, handed)
        far = torch.empty(2 * pitch + 16, dtype=torch.bfloat16).as_strided((3, 2, 3, 2), (1, 4, pitch, 8))
        handed[place] = far.copy_(handed[place])
        close(result(run, operation, layer, handed), right, 2**-7)


@pytest.mark.cuda
@NO_TRITON
@NO_DEVICE
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_device_reaches_beyond_two_to_the_31_elements(operation: str) -> None:
    beyond(Device(), operation)


@NO_TRITON
def test_the_interpreter_reaches_beyond_two_to_the_31_elements() -> None:
    """Run in a separate process, because untouched memory cannot be sent."""
    code = (
        "from tests.support.kernels.cuda_layers import here\n"
        "from tests.kernels.test_cuda import OPERATIONS, beyond\n"
        "for operation in OPERATIONS:\n    beyond(here, operation)"
    )
    environment = {**ENVIRONMENT, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment, cwd=ROOT, timeout=120)


def test_operands_that_do_not_fit_are_refused_by_name(run: Runner) -> None:
    x, filters, out = operands(ODD, "product", 3)
    for handed, words in (
        ([x.contiguous(), filters, out], "images last"),
        ([x[:, :, 1:], filters, out], "must be a batch of maps of 2 x 7 x 6"),
        ([x, filters[1:], out], "must be contiguous"),
        ([x, filters.transpose(3, 4).contiguous().transpose(3, 4), out], "must be contiguous"),
        ([x.to(torch.float32), filters, out], "one dtype and device"),
        ([x.half(), filters.half(), out.half()], "float16"),
        ([x[:2], filters, out], "got 2 and 3"),
    ):
        with pytest.raises(GeometryError, match=words):
            run("product", ODD, handed, SMALL)


def test_naming_a_kernel_does_not_import_triton() -> None:
    code = (
        "import sys\nfrom cotswold.kernels import cuda\n"
        "cuda.available(), cuda.product, cuda.adjoint, cuda.outer\n"
        "assert 'triton' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=ENVIRONMENT, cwd=ROOT, timeout=120)


@pytest.mark.skipif(torch.cuda.is_available() or is_interpreted(), reason="there is something to run them on")
def test_without_device_and_interpreter_kernels_are_not_available_and_say_so() -> None:
    assert not cuda.available()
    x, filters, out = operands(ODD, "product", 3)
    with pytest.raises(GeometryError, match="cannot access a tensor on cpu"):
        cuda.product(x, filters, ODD, out)


@given(st.integers(1, 4000))
def test_batches_fall_into_few_classes_that_hold_them(images: int) -> None:
    held = tiles.image_class(images)
    assert held >= min(images, 512)
    assert held <= max(16, 1.5 * images)
    assert held in {16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512}


@given(layers())
def test_cells_of_a_map_lie_edge_to_edge_from_the_corner_of_the_padding(layer: BlockLocal) -> None:
    cell = tiles.best_cell(layer)
    assert cell.rows * cell.wide <= cell.positions <= tiles.MAX_POSITIONS
    channels = layer.input.channels
    down = {(y + layer.y.pad_before) // cell.rows for y in range(layer.input.height)}
    across = {(x + layer.x.pad_before * channels) // cell.wide for x in range(layer.input.width * channels)}
    assert cell.count(layer) == len(down) * len(across)


def test_the_adjoint_of_the_papers_stack_takes_cells_of_one_step() -> None:
    """Coates et al. 2013: fields of 20, a step of 4; 5 x 5 whole fields meet a cell of one step by one."""
    stack = BlockLocal(MapShape(3, 200, 200), Window(20, 4), Window(20, 4), rows=4, columns=4, depth=8)
    cell = tiles.best_cell(stack)
    assert cell.rows == 4 and cell.wide % 12 == 0


def test_tiles_much_larger_than_a_layer_are_not_tried() -> None:
    chosen = tiles.fitting_tiles(tiles.PRODUCT, {"NEURONS": 20, "IMAGES": 500})
    assert {tile.sides["NEURONS"] for tile in chosen} == {16, 32}
    assert tiles.fitting_tiles(tiles.PRODUCT, {"NEURONS": 1, "IMAGES": 1}) == tiles.PRODUCT[-1:]
    assert all(a.sides["NEURONS"] >= b.sides["NEURONS"] for a, b in pairwise(tiles.PRODUCT))


@pytest.mark.parametrize(("word", "coarse"), [("tf32", True), ("ieee", False), ("none", False)])
def test_the_newer_word_for_precision_decides_where_torch_has_it(
    word: str, coarse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Settings:
        fp32_precision = word

        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mix of the legacy and new APIs")

    monkeypatch.setattr(torch.backends.cuda, "matmul", Settings())
    assert launch._coarse_products() is coarse

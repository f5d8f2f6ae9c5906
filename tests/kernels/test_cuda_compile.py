from __future__ import annotations

import re
from math import gcd

import pytest
import torch
from tests.support.kernels.cuda_layers import NO_TRITON
from tests.support.ops.layers import ODD

from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.cuda import launch, products, tiles, updates
from cotswold.kernels.cuda.launch import is_interpreted


def compiled(
    name: str, element: str, layer: BlockLocal, images: int, tile: tiles.ProgramTile, capability: int = 80
) -> str:
    """Return the assembly of a program for a device that is not there, of a layer with dense maps."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from cotswold.kernels.cuda import triton_kernels

    kernel = triton.jit(getattr(triton_kernels, name))
    dtype = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}[element]
    cell = tiles.best_cell(layer)
    sides = {"PLACES": cell.positions, **tile.sides}
    fixed = {**launch.arithmetic(dtype), **products.adjoint_constants(layer, images), **sides}
    fixed["GRAIN"] = gcd(16, images)
    fixed["NEURONS_LAST"] = products.needs_neurons_last(dtype, fixed["PRECISION"])
    row = layer.output.width * layer.output.channels
    fixed["DELTA_GRAIN"] = gcd(16, row if fixed["NEURONS_LAST"] else images)
    fixed = {argument: fixed[argument] for argument in kernel.arg_names if argument in fixed}
    pointers = [one for one in kernel.arg_names if one in ("x", "y", "delta", "filters", "out")]
    # Triton makes an argument of 1 a constant
    if images == fixed["GRAIN"]:
        fixed["images"] = 1
    signature = {
        argument: f"*{element}" if argument in pointers else "constexpr" if argument in fixed else "i32"
        for argument in kernel.arg_names
    }
    aligned = {(kernel.arg_names.index(pointer),): [["tt.divisibility", 16]] for pointer in pointers}
    code = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True},
    )
    assembly: str = code.asm["ptx"]
    assert len(code.asm["cubin"]) > 0
    return assembly


NO_COMPILER = pytest.mark.skipif(is_interpreted(), reason="the interpreter compiles nothing")
CHOICES = {"product": tiles.PRODUCT, "adjoint": tiles.ADJOINT, "outer": tiles.OUTER}
SQUARE = BlockLocal(MapShape(4, 32, 32), Window(8, 4), Window(8, 4), rows=2, columns=2, depth=16)


@NO_TRITON
@NO_COMPILER
@pytest.mark.parametrize("layer", [ODD, BlockLocal(MapShape(1, 1, 1), Window(1), Window(1), 1, 1, 1)])
@pytest.mark.parametrize("name", ["product", "adjoint", "outer"])
def test_programs_compile_for_a_device_that_is_not_there(name: str, layer: BlockLocal) -> None:
    tile = CHOICES[name][-1]
    for element, instruction in (("fp32", "fma.rn.f32"), ("fp64", "f64"), ("bf16", "mma.sync")):
        assembly = compiled(name, element, layer, 37, tile)
        assert instruction in assembly
        assert "tf32" not in assembly


@NO_TRITON
@NO_COMPILER
@pytest.mark.parametrize(
    ("element", "images", "width"), [("bf16", 96, 16), ("bf16", 200, 16), ("bf16", 100, 8), ("fp32", 100, 16)]
)
@pytest.mark.parametrize("name", ["product", "adjoint", "outer"])
def test_loads_of_a_device_are_wide_and_go_to_shared_memory(
    name: str, element: str, images: int, width: int
) -> None:
    """The filters' loads are 16 bytes wide, those of maps are as wide as the batch allows."""
    sides = {"NEURONS": 64, "IMAGES": 64, "PLACES": 64, "DEPTH": 32}
    tile = tiles.ProgramTile({side: sides[side] for side in CHOICES[name][0].sides}, 4, 3)
    assembly = compiled(name, element, SQUARE, images, tile, capability=90)
    copies = re.findall(r"cp\.async\.c[ag]\.shared\.global \[.*?, (0x[0-9a-f]+|\d+),", assembly)
    assert copies and {int(size, 0) for size in copies} <= {width, 16}
    assert "ld.global" not in assembly


@NO_TRITON
@NO_COMPILER
def test_the_tuner_keeps_its_choice_on_the_disk_and_tries_no_tile_too_deep() -> None:
    tuner = launch._kernel(products._PRODUCT)
    assert tuner.cache_results
    constants = products._constants(SQUARE, 96)
    for dtype, most in ((torch.float32, 32), (torch.bfloat16, 64)):
        chosen = tuner.early_config_prune(tuner.configs, {"x": torch.empty(1, dtype=dtype)}, **constants)
        assert max(config.kwargs["DEPTH"] for config in chosen) == most
        assert max(config.kwargs["NEURONS"] for config in chosen) == SQUARE.neurons


@NO_TRITON
@NO_COMPILER
@pytest.mark.parametrize(("fan_in", "neurons"), [(1, 1), (9, 5), (1200, 128)])
@pytest.mark.parametrize("element", ["fp32", "fp64", "bf16"])
def test_the_update_compiles_for_a_device_that_is_not_there(element: str, fan_in: int, neurons: int) -> None:
    """``bf16`` has float32 masters and a bfloat16 gradient."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from cotswold.kernels.cuda import triton_kernels

    kernel = triton.jit(triton_kernels.update)
    sides = updates._sides(fan_in, neurons)
    dtype = torch.float64 if element == "fp64" else torch.float32
    fixed = {
        "fan_in": fan_in,
        "neurons": neurons,
        "NARROW": element == "bf16",
        "SUM": launch.arithmetic(dtype)["SUM"],
        "NEURONS": sides["NEURONS"],
        "PLACES": sides["PLACES"],
    }
    wide = "fp64" if element == "fp64" else "fp32"
    types = {"gradient": element, "narrow": element, "alpha": "fp64", "constants": "fp64"}
    names = kernel.arg_names
    code = triton.compile(
        ASTSource(
            fn=kernel,
            signature={name: "constexpr" if name in fixed else f"*{types.get(name, wide)}" for name in names},
            constexprs=fixed,
            attrs={(names.index(name),): [["tt.divisibility", 16]] for name in names if name not in fixed},
        ),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": sides["num_warps"]},
    )
    assembly = code.asm["ptx"]
    assert len(code.asm["cubin"]) > 0
    assert ("st.global.v4.b32" in assembly) == (neurons == 128 and element != "fp64")

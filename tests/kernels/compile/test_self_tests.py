"""Wrong kernels, as from a cache of another edition or on a new processor."""

from __future__ import annotations

import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch
from llvmlite import ir
from tests.support.kernels.operations import forced, operands, processors, run, same_bits
from tests.support.ops.layers import PLAIN, WIDE, random_map, random_weights

from cotswold import ops
from cotswold.geometry import Box, Region, Smoothing, StackGeometry
from cotswold.kernels import available
from cotswold.kernels.compile import code_cache, library
from cotswold.kernels.machine.processor import Processor, this_processor
from cotswold.kernels.microkernels.job import JOB
from cotswold.kernels.microkernels.kinds import KINDS
from cotswold.kernels.products import compiled
from cotswold.kernels.products import run as kernels
from cotswold.ops import filters
from cotswold.ops.memory_format import empty_map
from cotswold.ops.products import adjoint_at, product_of

pytestmark = pytest.mark.skipif(not processors(), reason="kernels have no code for this processor")
SOURCE = Path(__file__).parents[3] / "src"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder of this test, with empty caches in the process."""
    monkeypatch.setenv("COTSWOLD_CACHE", str(tmp_path / "cache"))
    code_cache._WARNED_DIRECTORIES.clear()
    monkeypatch.setattr(library, "_ADDRESSES", {})
    monkeypatch.setattr(available, "_failures", [])
    return tmp_path / "cache"


def of_another_edition(name: tuple[object, ...], processor: Processor, write: partial[ir.Module]) -> bytes:
    """Return a kernel for jobs in which two fields are swapped."""
    text = str(write())
    a, b = (f'getelementptr i64, ptr %".1", i64 {int(field)}' for field in (JOB["a_pitch"], JOB["b_pitch"]))
    assert a in text and b in text
    changed = text.replace(a, "SWAP").replace(b, a).replace("SWAP", b)
    from llvmlite import binding as llvm

    from cotswold.kernels.compile import engine

    found: bytes = engine.target_machine(processor).emit_object(llvm.parse_assembly(changed))
    return found


def test_code_of_another_edition_under_the_name_of_this_one_is_found_out_and_replaced(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = operands("product", WIDE, 9, torch.float32)
    expected = run("product", WIDE, pair, forced(2, 3, few=False))
    (file,) = cache.glob("product-*.o")
    right = code_cache.load(file.name)
    here, tile = this_processor(), forced(2, 3).tile
    assert here is not None and tile is not None and right is not None
    write = compiled._writer("product", "float32", tile, here)
    code_cache.save(file.name, of_another_edition((), here, write))
    monkeypatch.setattr(library, "_ADDRESSES", {})
    kernels.READY.clear()
    assert same_bits(run("product", WIDE, pair, forced(2, 3, few=False)), expected)
    assert code_cache.load(file.name) == right


def everything() -> list[torch.Tensor]:
    """Return the results of all operations in float32, as float64."""
    shapes = PLAIN.input, PLAIN.output
    x, y = (ops.images_last(random_map(shape, 33, dtype=torch.float32)) for shape in shapes)
    weights, biases = random_weights(PLAIN, dtype=torch.float32), torch.ones(PLAIN.norms_shape)
    smoothing = Smoothing(3, keep=True)
    inside, near = Region(Box((0, 0), (1, 2))), Region(Box((1, 1), (5, 6)))
    responses, decoded = empty_map(x, 33, PLAIN.output).fill_(7), empty_map(x, 33, PLAIN.input).fill_(7)
    product_of(x, weights, PLAIN, inside, responses, biases)
    adjoint_at(y, weights, PLAIN, near, decoded)
    pooled = ops.l2_pool(x, smoothing)
    geometry = StackGeometry(PLAIN, smoothing, smoothing)
    unit = ops.random_filters(PLAIN, 0, 0)
    state = ops.StackState(
        unit, ops.filter_norms(unit), torch.zeros_like(unit), torch.ones(()).double(), torch.ones(()).double()
    )
    ops.stack_step(state, x, geometry, ops.StackObjective(), ops.StepRule(2.0))
    found = [
        ops.images_last(x.contiguous()),
        ops.local_product(x, weights, PLAIN),
        ops.local_adjoint(y, weights, PLAIN),
        ops.local_outer(y, x, PLAIN),
        ops.local_layer(x, weights, biases, PLAIN, "tanh"),
        responses,
        decoded,
        pooled,
        ops.contrast_norm(pooled, smoothing),
        ops.images_first(pooled),
        filters._norms_op(weights),
        filters._scaled_op(weights, filters._norms_op(weights)),
        state.filters,
    ]
    leaf = x.clone().requires_grad_()
    out = ops.contrast_norm(ops.l2_pool(leaf, smoothing), smoothing)
    return [one.double() for one in (*found, torch.autograd.grad(out.square().sum(), leaf)[0])]


KERNELS = [
    *(kind for kind in KINDS if kind not in ("product_sigmoid", "product_relu", "product_small_batch")),
    *("pooling", "normalisation", "norms", "scaled", "images_last", "images_first"),
]


@pytest.mark.parametrize("wrong", KERNELS)
def test_torch_serves_and_one_warning_says_so_where_a_kernel_computes_wrongly(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTSWOLD_KERNELS", "torch")
    expected = everything()
    monkeypatch.delenv("COTSWOLD_KERNELS")
    monkeypatch.setattr(library, "_ADDRESSES", {})
    monkeypatch.setattr(available, "_failures", [])
    usual = library._load_or_compile

    def ready(
        name: library.Name, processor: Processor, write: partial[ir.Module], trial: library.SelfTest
    ) -> int:
        if name[0] == wrong:
            raise available.WrongKernelError(f"the kernel {wrong} computes wrongly")
        return usual(name, processor, write, trial)

    monkeypatch.setattr(library, "_load_or_compile", ready)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(2):
            for found, right in zip(everything(), expected, strict=True):
                torch.testing.assert_close(found, right, rtol=2e-4, atol=2e-4)
    assert [one.category for one in told] == [RuntimeWarning]
    assert f"the kernel {wrong} " in str(told[0].message) and "torch.bmm" in str(told[0].message)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("kind", ["product", "product_small_batch", "adjoint", "outer", "step"])
def test_a_trial_finds_out_fields_of_a_job_that_changed_places(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "_compile", of_another_edition)
    here = this_processor()
    tile = forced(8, 3).tile
    assert here is not None and tile is not None
    with pytest.raises(available.WrongKernelError, match=f"the kernel {kind} float32 8x3 computes wrongly"):
        compiled.kernel(kind, "float32", tile, here)


UPGRADED = """
import sys
from pathlib import Path
import torch
from cotswold import ops
from cotswold.geometry import BlockLocal, MapShape, Window
from cotswold.kernels.compile import code_cache  # the generators are imported
from cotswold.kernels.products import run as products
from cotswold.ops import batched
if len(sys.argv) > 1:  # and replaced on the disk, before a kernel is needed
    file = Path(sys.argv[1])
    text = file.read_text()
    new = text.replace('"a_pitch", "b_pitch"', '"b_pitch", "a_pitch"')
    assert new != text
    file.write_text(new)
layer = BlockLocal(MapShape(3, 6, 6), Window(3), Window(3), 1, 1, 5)
x, w = torch.randn(32, 3, 6, 6), torch.randn(layer.filters_shape)
assert torch.allclose(ops.local_product(x, w, layer), batched.product(x, w, layer), atol=1e-4)
print(*sorted(one.name for one in code_cache.folder().glob("product*.o")))
"""


def computed(path: Path, cache: Path, *arguments: str) -> list[str]:
    """Return the cached products of a process that imports Cotswold from a path."""
    environment = {"PYTHONPATH": str(path), "COTSWOLD_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", UPGRADED, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.split()


@pytest.mark.soak
def test_code_is_named_by_what_was_imported_not_by_what_lies_on_the_disk(tmp_path: Path) -> None:
    place, cache = tmp_path / "lib", tmp_path / "cache"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(SOURCE / "cotswold", place / "cotswold", ignore=ignored)
    (old,) = computed(place, cache, str(place / "cotswold/kernels/microkernels/job.py"))
    both = computed(place, cache)
    assert len(both) == 2 and old in both

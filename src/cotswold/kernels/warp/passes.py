"""Image warps on arrays in memory.

Knows: the fields of a job, the small images of the self-tests. Does not know: formulas in vectors, the kinds
of warps.

It uses one thread: batches are made while other threads train on the previous batch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from cotswold.kernels.compile import library, self_test_reference
from cotswold.kernels.compile.emit import Lanes
from cotswold.kernels.compile.jobs import JobHead, cached_kernel, prepare_kernel
from cotswold.kernels.machine.execution import PreparedKernel
from cotswold.kernels.machine.processor import Processor
from cotswold.kernels.products.problem import NO_OVERRIDES, Overrides, processor_of
from cotswold.kernels.warp.images import HASH_MULTIPLIERS, Field, Float32, Images, PaddingMode
from cotswold.kernels.warp.job import JOB, Planes
from cotswold.kernels.warp.write import write_warp

OPERANDS = "values", "output", "maps", "slopes", "keys", "taps", "stream"
DTYPE = "float32"
Reference = Callable[[Images], Float32]
"""The same warp in plain NumPy."""


def run(images: Images, reference: Reference, overrides: Overrides = NO_OVERRIDES) -> Float32:
    """Return warped images, by a kernel that has reproduced the bits of ``reference`` in its self-test.

    Images of one column go to ``reference``. Raises WrongKernelError if a kernel has other bits.
    """
    if images.values.shape[3] < 2:
        return reference(images)
    processor = processor_of(overrides)
    fill, has_field = images.fill, images.field is not None
    write = partial(write_warp, fill, has_field, Lanes(DTYPE, processor.lanes(DTYPE)), processor.triple)
    is_right = partial(_passes_self_test, fill, has_field, processor, reference)
    name = ("warp", fill, "field" if has_field else "map")
    return _run(library.address(name, processor, write, is_right), images, processor)


def _run(address: int, images: Images, processor: Processor) -> Float32:
    values, maps, field = images.values, images.maps, images.field
    shape, reach = values.shape[1:], 0 if field is None else len(field.taps) // 2
    kernel = cached_kernel(
        ("warp", address, shape, reach),
        lambda: _prepared(address, shape, field is not None, reach, processor),
    )
    found = np.empty_like(values)
    theirs = (0, 0, 0, 0)
    if field is not None:
        middle = field.taps.ctypes.data + reach * field.taps.itemsize
        theirs = (
            *(field.slopes.ctypes.data, field.keys.ctypes.data, middle),
            field.stream * HASH_MULTIPLIERS[0] & 0xFFFFFFFF,
        )
    kernel.run(len(values), values.ctypes.data, found.ctypes.data, maps.ctypes.data, *theirs)
    return found


def _prepared(
    address: int, shape: tuple[int, ...], has_field: bool, reach: int, processor: Processor
) -> PreparedKernel:
    channels, height, width = shape
    across, down = min(reach, width - 1), min(reach, height - 1)
    fields = JOB.fill(
        0, {"channels": channels, "height": height, "width": width, "taps_x": across, "taps_y": down}
    )
    scratch = Planes.for_image(processor.lanes(DTYPE), height, width, across).size if has_field else 0
    return prepare_kernel(address, fields, (JobHead.TASKS, *JOB.places(*OPERANDS)), scratch, (DTYPE, 1))


def _passes_self_test(
    fill: PaddingMode, has_field: bool, processor: Processor, reference: Reference, address: int
) -> bool:
    """True if a kernel warps small images as the reference does, to the bit.

    The test covers vectors and a remainder, channels, places inside and far outside.
    """
    height, width = 2 * processor.lanes(DTYPE) + 3, processor.lanes(DTYPE) + 5
    values = self_test_reference.sample_values(3, 2, height, width).astype(np.float32)
    turns = np.array([[0.75, -0.625, 1.3], [0.5, 0.875, -2.7]], np.float32)
    maps = np.stack([turns, turns * np.float32(3), turns * np.float32(-0.5)])
    field = None
    if has_field:
        taps = np.array([0.1, 0.2, 0.4, 0.2, 0.1], np.float32)
        slopes = np.array([[[3, 0.5], [-0.3, 5]]] * 3, np.float32)
        keys = np.array([7, 1 << 63, 0x123456789ABCDEF], np.uint64)
        field = Field(keys, 3, taps, slopes)
    trial = Images(values, maps, field, fill)
    return _run(address, trial, processor).tobytes() == reference(trial).tobytes()

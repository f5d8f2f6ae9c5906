"""Triton kernels: what one program computes for one tile of the result.

Knows: the layouts of maps and filters, padding, the positions of a block's neurons. Does not know: torch, the
best tile, compilation and launch. Imported on first use of a kernel, because it needs Triton.

Terms: a *tile* is the part of the result that one program holds in registers. ``NEURONS``, ``IMAGES`` and
``PLACES`` (of a field, or of the map) are its sides, and ``DEPTH`` is the number of terms summed at once; all
are powers of two. ``wide`` counts the inputs of one field row (columns times channels), which are one channel
stride apart, because a column's stride covers all its channels. Offsets are 64-bit: maps and filters may have
more than 2^31 elements. One program writes each element of a result, in a fixed order of terms. Masked values
are never added, so that an infinity reaches only the results that depend on it.

The number of images and the strides of maps are given in units of ``GRAIN`` elements, their common divisor,
and the sizes of a layer are compile-time constants. So the compiler knows which loads can be 16 bytes wide.

Arguments are one-element tensors or addresses, except ``tl.constexpr``: Triton reads the annotations, and
``int`` would mean 32 bits.
"""

from __future__ import annotations

import triton.language as tl


def product(
    x: tl.tensor,
    filters: tl.tensor,
    out: tl.tensor,
    images: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    low_y: tl.tensor,
    low_x: tl.tensor,
    step_y: tl.tensor,
    step_x: tl.tensor,
    grid_x: tl.tensor,
    x_channel: tl.tensor,
    x_row: tl.tensor,
    out_channel: tl.tensor,
    out_row: tl.tensor,
    channels: tl.constexpr,
    field_y: tl.constexpr,
    field_x: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    image_class: tl.constexpr,
    GRAIN: tl.constexpr,
    SUM: tl.constexpr,
    FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
    NEURONS: tl.constexpr,
    IMAGES: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """``Wx``: neurons x images of one block, summed over the part of its field inside the map."""
    neurons: tl.constexpr = rows * columns * depth
    wide: tl.constexpr = field_x * channels
    images = images * GRAIN
    neuron_tiles = tl.cdiv(neurons, NEURONS)
    image_tiles = tl.cdiv(images, IMAGES)
    tile = tl.program_id(0)
    neuron = tile % neuron_tiles * NEURONS + tl.arange(0, NEURONS)
    image = tile // neuron_tiles % image_tiles * IMAGES + tl.arange(0, IMAGES)
    block = tile // (neuron_tiles * image_tiles)
    block_y = block // grid_x
    block_x = block % grid_x

    first_y = block_y * step_y - low_y
    first_x = block_x * step_x - low_x
    terms: tl.constexpr = field_y * wide
    weights = filters + block.to(tl.int64) * terms * neurons

    total = tl.zeros((NEURONS, IMAGES), dtype=SUM)
    for start in range(0, terms, DEPTH):
        term = start + tl.arange(0, DEPTH)
        row = first_y + term // wide
        column = first_x * channels + term % wide
        real = (term < terms) & (row >= 0) & (row < height) & (column >= 0) & (column < width * channels)
        weight = tl.load(
            weights + (term.to(tl.int64) * neurons)[:, None] + neuron[None, :],
            mask=real[:, None] & (neuron < neurons)[None, :],
            other=0.0,
        )
        value_at = (row.to(tl.int64) * x_row + column.to(tl.int64) * x_channel) * GRAIN
        value = tl.load(
            x + value_at[:, None] + image[None, :], mask=real[:, None] & (image < images)[None, :], other=0.0
        )
        total = tl.dot(
            tl.trans(weight.to(FACTOR)), value.to(FACTOR), total, input_precision=PRECISION, out_dtype=SUM
        )

    across: tl.constexpr = columns * depth
    out_y = block_y * rows + neuron // across
    out_x = block_x * across + neuron % across
    place = (out_y.to(tl.int64) * out_row + out_x.to(tl.int64) * out_channel) * GRAIN
    tl.store(
        out + place[:, None] + image[None, :],
        total.to(out.dtype.element_ty),
        mask=(neuron < neurons)[:, None] & (image < images)[None, :],
    )


def adjoint(
    y: tl.tensor,
    filters: tl.tensor,
    out: tl.tensor,
    images: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    low_y: tl.tensor,
    low_x: tl.tensor,
    grid_y: tl.tensor,
    grid_x: tl.tensor,
    y_channel: tl.tensor,
    y_row: tl.tensor,
    out_channel: tl.tensor,
    out_row: tl.tensor,
    channels: tl.constexpr,
    field_y: tl.constexpr,
    field_x: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    step_y: tl.constexpr,
    step_x: tl.constexpr,
    image_class: tl.constexpr,
    GRAIN: tl.constexpr,
    SUM: tl.constexpr,
    FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
    cell_rows: tl.constexpr,
    cell_wide: tl.constexpr,
    WHOLE: tl.constexpr,
    PLACES: tl.constexpr,
    IMAGES: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """``W'y``: places x images of one cell of the map, gathered from every block whose field meets the cell.

    A cell is ``cell_rows`` rows of ``cell_wide`` columns-and-channels, counted from the corner of the
    padding, so that all points of a cell of one step are covered by the same blocks. If ``WHOLE``, a block
    that meets a cell covers all of it.
    """
    neurons: tl.constexpr = rows * columns * depth
    wide: tl.constexpr = field_x * channels
    across: tl.constexpr = columns * depth
    images = images * GRAIN
    low_wide = low_x * channels
    image_tiles = tl.cdiv(images, IMAGES)
    skipped_y = low_y // cell_rows
    skipped_x = low_wide // cell_wide
    cells_x = tl.cdiv((width + low_x) * channels, cell_wide) - skipped_x
    tile = tl.program_id(0)
    image = tile % image_tiles * IMAGES + tl.arange(0, IMAGES)
    cell = tile // image_tiles
    cell_top = (skipped_y + cell // cells_x) * cell_rows
    cell_left = (skipped_x + cell % cells_x) * cell_wide

    place = tl.arange(0, PLACES)
    place_y = cell_top + place // cell_wide
    place_x = cell_left + place % cell_wide
    in_y = (place < cell_rows * cell_wide) & (place_y >= low_y) & (place_y < height + low_y)
    in_map = in_y & (place_x >= low_wide) & (place_x < (width + low_x) * channels)

    # blocks that meet the cell, from its first and last row and column inside the map
    least_y = tl.maximum(cell_top, low_y)
    most_y = tl.minimum(cell_top + cell_rows, height + low_y) - 1
    least_x = tl.maximum(cell_left, low_wide) // channels
    most_x = (tl.minimum(cell_left + cell_wide, (width + low_x) * channels) - 1) // channels
    first_y = tl.maximum(least_y - field_y + step_y, 0) // step_y
    first_x = tl.maximum(least_x - field_x + step_x, 0) // step_x
    blocks_y = tl.maximum(tl.minimum(most_y // step_y, grid_y - 1) - first_y + 1, 0)
    blocks_x = tl.maximum(tl.minimum(most_x // step_x, grid_x - 1) - first_x + 1, 0)

    # one loop over blocks and neurons instead of three, so that loads always overlap with products
    parts: tl.constexpr = (neurons + DEPTH - 1) // DEPTH
    total = tl.zeros((PLACES, IMAGES), dtype=SUM)
    for turn in range(blocks_y * blocks_x * parts):
        neuron = turn % parts * DEPTH + tl.arange(0, DEPTH)
        block = turn // parts
        block_y = first_y + block // blocks_x
        block_x = first_x + block % blocks_x
        row = place_y - block_y * step_y
        column = place_x - block_x * step_x * channels
        meets = in_map & (row >= 0) & (row < field_y) & (column >= 0) & (column < wide)
        weight_at = (((block_y.to(tl.int64) * grid_x + block_x) * field_y + row) * wide + column) * neurons
        weight = tl.load(
            filters + weight_at[:, None] + neuron[None, :],
            mask=meets[:, None] & (neuron < neurons)[None, :],
            other=0.0,
        )
        y_y = block_y * rows + neuron // across
        y_x = block_x * across + neuron % across
        value_at = (y_y.to(tl.int64) * y_row + y_x.to(tl.int64) * y_channel) * GRAIN
        value = tl.load(
            y + value_at[:, None] + image[None, :],
            mask=(neuron < neurons)[:, None] & (image < images)[None, :],
            other=0.0,
        )
        more = tl.dot(weight.to(FACTOR), value.to(FACTOR), total, input_precision=PRECISION, out_dtype=SUM)
        total = more if WHOLE else tl.where(meets[:, None], more, total)

    out_at = (place_y - low_y).to(tl.int64) * out_row + (place_x - low_wide).to(tl.int64) * out_channel
    out_at = out_at * GRAIN
    tl.store(
        out + out_at[:, None] + image[None, :],
        total.to(out.dtype.element_ty),
        mask=in_map[:, None] & (image < images)[None, :],
    )


def outer(
    delta: tl.tensor,
    x: tl.tensor,
    out: tl.tensor,
    images: tl.tensor,
    height: tl.tensor,
    width: tl.tensor,
    low_y: tl.tensor,
    low_x: tl.tensor,
    step_y: tl.tensor,
    step_x: tl.tensor,
    grid_x: tl.tensor,
    delta_image: tl.tensor,
    delta_channel: tl.tensor,
    delta_row: tl.tensor,
    x_channel: tl.tensor,
    x_row: tl.tensor,
    channels: tl.constexpr,
    field_y: tl.constexpr,
    field_x: tl.constexpr,
    rows: tl.constexpr,
    columns: tl.constexpr,
    depth: tl.constexpr,
    image_class: tl.constexpr,
    GRAIN: tl.constexpr,
    DELTA_GRAIN: tl.constexpr,
    NEURONS_LAST: tl.constexpr,
    SUM: tl.constexpr,
    FACTOR: tl.constexpr,
    PRECISION: tl.constexpr,
    PLACES: tl.constexpr,
    NEURONS: tl.constexpr,
    DEPTH: tl.constexpr,
) -> None:
    """``δx'``: field places x neurons of one block, summed over images; 0 for places in the padding.

    If ``NEURONS_LAST``, delta is ``[image][y][x][channel]``. Without tensor cores each of the 32 threads of a
    warp reads other neurons of one image from shared memory, which must be contiguous to be read at once.
    Strides of delta are in units of ``DELTA_GRAIN``, except those of 1.
    """
    neurons: tl.constexpr = rows * columns * depth
    wide: tl.constexpr = field_x * channels
    across: tl.constexpr = columns * depth
    images = images * GRAIN
    neuron_tiles = tl.cdiv(neurons, NEURONS)
    place_tiles = tl.cdiv(field_y * wide, PLACES)
    tile = tl.program_id(0)
    neuron = tile % neuron_tiles * NEURONS + tl.arange(0, NEURONS)
    place = tile // neuron_tiles % place_tiles * PLACES + tl.arange(0, PLACES)
    block = tile // (neuron_tiles * place_tiles)
    block_y = block // grid_x
    block_x = block % grid_x

    row = block_y * step_y - low_y + place // wide
    column = (block_x * step_x - low_x) * channels + place % wide
    real = (
        (place < field_y * wide) & (row >= 0) & (row < height) & (column >= 0) & (column < width * channels)
    )
    value_at = (row.to(tl.int64) * x_row + column.to(tl.int64) * x_channel) * GRAIN
    delta_y = block_y * rows + neuron // across
    delta_x = block_x * across + neuron % across
    if NEURONS_LAST:
        delta_at = delta_y.to(tl.int64) * delta_row * DELTA_GRAIN + delta_x
    else:
        delta_at = (delta_y.to(tl.int64) * delta_row + delta_x.to(tl.int64) * delta_channel) * DELTA_GRAIN

    total = tl.zeros((PLACES, NEURONS), dtype=SUM)
    for start in range(0, images, DEPTH):
        image = start + tl.arange(0, DEPTH)
        inside = image < images
        value = tl.load(
            x + value_at[:, None] + image[None, :], mask=real[:, None] & inside[None, :], other=0.0
        )
        if NEURONS_LAST:
            image_at = image.to(tl.int64) * delta_image * DELTA_GRAIN
            slope = tl.load(
                delta + image_at[:, None] + delta_at[None, :],
                mask=inside[:, None] & (neuron < neurons)[None, :],
                other=0.0,
            )
        else:
            slope = tl.trans(
                tl.load(
                    delta + delta_at[:, None] + image[None, :],
                    mask=(neuron < neurons)[:, None] & inside[None, :],
                    other=0.0,
                )
            )
        total = tl.dot(value.to(FACTOR), slope.to(FACTOR), total, input_precision=PRECISION, out_dtype=SUM)

    total = tl.where(real[:, None], total, 0.0)
    out_at = (block.to(tl.int64) * field_y * wide + place) * neurons
    tl.store(
        out + out_at[:, None] + neuron[None, :],
        total.to(out.dtype.element_ty),
        mask=(place < field_y * wide)[:, None] & (neuron < neurons)[None, :],
    )


def update(
    filters: tl.tensor,
    norms: tl.tensor,
    momentum: tl.tensor,
    gradient: tl.tensor,
    alpha: tl.tensor,
    constants: tl.tensor,
    narrow: tl.tensor,
    fan_in: tl.constexpr,
    neurons: tl.constexpr,
    NARROW: tl.constexpr,
    SUM: tl.constexpr,
    NEURONS: tl.constexpr,
    PLACES: tl.constexpr,
) -> None:
    """Step of some neurons of one block, in three passes over their filters, gradient and momentum.

    The first measures filters and gradient, the second the step before it is shortened, the third writes.
    The norm of the moved filters follows from ``|f + s|² = |f|² + 2 f's + |s|²``. A step is short, so that
    no large terms cancel. ``constants`` are the fraction of the momentum that is kept, the rate, and the
    longest step.
    """
    neuron_tiles = tl.cdiv(neurons, NEURONS)
    tile = tl.program_id(0)
    neuron = tile % neuron_tiles * NEURONS + tl.arange(0, NEURONS)
    block = (tile // neuron_tiles).to(tl.int64)
    here = neuron < neurons
    rows = tl.arange(0, PLACES)[:, None]
    at = block * fan_in * neurons + rows * neurons + neuron[None, :]

    keep = tl.load(constants).to(SUM)
    rate = tl.load(constants + 1).to(SUM) / tl.load(alpha).to(SUM)
    longest = tl.load(constants + 2).to(SUM)
    norm_at = norms + block * neurons + neuron
    norm = tl.load(norm_at, mask=here, other=0.0).to(SUM)
    unit = tl.where(norm > 0, 1 / tl.where(norm > 0, norm, 1.0), 0.0)

    common = tl.zeros((PLACES, NEURONS), dtype=SUM)
    square = tl.zeros((PLACES, NEURONS), dtype=SUM)
    for start in range(0, fan_in, PLACES):
        real = (start + rows < fan_in) & here[None, :]
        moving = tl.load(filters + at + start * neurons, mask=real, other=0.0).to(SUM)
        slope = tl.load(gradient + at + start * neurons, mask=real, other=0.0).to(SUM)
        common += moving * slope
        square += moving * moving
    along = (tl.sum(common, 0) * unit * unit)[None, :]
    length = tl.sum(square, 0)

    scale = (rate * unit)[None, :]
    common = tl.zeros((PLACES, NEURONS), dtype=SUM)
    square = tl.zeros((PLACES, NEURONS), dtype=SUM)
    for start in range(0, fan_in, PLACES):
        real = (start + rows < fan_in) & here[None, :]
        moving = tl.load(filters + at + start * neurons, mask=real, other=0.0).to(SUM)
        slope = tl.load(gradient + at + start * neurons, mask=real, other=0.0).to(SUM)
        step = tl.load(momentum + at + start * neurons, mask=real, other=0.0).to(SUM)
        step = keep * step - scale * (slope - along * moving)
        common += moving * step
        square += step * step
    stepped = tl.sum(square, 0)
    shorter = tl.minimum(longest * norm / (tl.sqrt(stepped) + 1e-30), 1.0)
    length = length + shorter * (2 * tl.sum(common, 0) + shorter * stepped)
    new_unit = tl.where(length > 0, 1 / tl.sqrt(tl.where(length > 0, length, 1.0)), 0.0)[None, :]

    square = tl.zeros((PLACES, NEURONS), dtype=SUM)
    for start in range(0, fan_in, PLACES):
        real = (start + rows < fan_in) & here[None, :]
        moving = tl.load(filters + at + start * neurons, mask=real, other=0.0).to(SUM)
        slope = tl.load(gradient + at + start * neurons, mask=real, other=0.0).to(SUM)
        step = tl.load(momentum + at + start * neurons, mask=real, other=0.0).to(SUM)
        step = (keep * step - scale * (slope - along * moving)) * shorter[None, :]
        moving = (moving + step) * new_unit
        tl.store(momentum + at + start * neurons, step.to(momentum.dtype.element_ty), mask=real)
        tl.store(filters + at + start * neurons, moving.to(filters.dtype.element_ty), mask=real)
        if NARROW:
            tl.store(narrow + at + start * neurons, moving.to(narrow.dtype.element_ty), mask=real)
        square += moving * moving
    tl.store(norm_at, tl.sqrt(tl.sum(square, 0)).to(norms.dtype.element_ty), mask=here)

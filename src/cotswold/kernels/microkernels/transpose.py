"""Transposition between a map, images last, and scratch, neurons last.

Knows: square tiles of vectors. Does not know: why neurons must be last.
"""

from __future__ import annotations

from llvmlite import ir

from cotswold.kernels.compile.emit import I64, POINTER, VOID, FunctionBuilder, Lanes, integer, loop


def write_transpose(module: ir.Module, lanes: Lanes) -> ir.Function:
    """``transpose(map, neurons' offsets, neurons, images, scratch, pitch, back)``, generated once per module.

    With ``back`` 0, copy the map's elements to ``scratch[image * pitch + neuron]``, which must have room for
    whole tiles; else copy them back.
    """
    found = module.globals.get("transpose")
    if found is not None:
        return found
    kind = ir.FunctionType(VOID, [POINTER, POINTER, I64, I64, POINTER, I64, I64])
    function = ir.Function(module, kind, "transpose")
    function.linkage = "internal"
    function.attributes.add("noinline")
    source, offsets, neurons, images, scratch, pitch, back = function.args
    w = FunctionBuilder(function, lanes)
    last_neuron = w.b.sub(neurons, integer(1))
    last_image = w.b.sub(images, integer(1))
    backwards = w.b.icmp_signed("!=", back, integer(0))
    with (
        loop(w, neurons, step=lanes.count) as across,
        loop(w, images, step=lanes.count) as down,
    ):
        mask = w.lane_mask(w.b.sub(images, down.index))
        places = []
        for i in range(lanes.count):
            neuron = w.min_int(w.b.add(across.index, integer(i)), last_neuron)
            places.append(w.element_pointer(w.element_pointer(source, w.field(offsets, neuron)), down.index))
        rows = []
        for i in range(lanes.count):
            image = w.b.add(down.index, integer(i))
            rows.append(w.element_pointer(w.element_pointer(scratch, w.b.mul(image, pitch)), across.index))
        with w.b.if_else(backwards) as (to_map, to_scratch):
            with to_map:
                clamped = [
                    w.element_pointer(
                        w.element_pointer(
                            scratch, w.b.mul(w.min_int(w.b.add(down.index, integer(i)), last_image), pitch)
                        ),
                        across.index,
                    )
                    for i in range(lanes.count)
                ]
                values = transposed(w, [w.load(place) for place in clamped])
                # the last neuron's address may occur several times: its own value is written last
                exists = [
                    w.b.icmp_signed("<", w.b.add(across.index, integer(i)), neurons)
                    for i in range(lanes.count)
                ]
                for place, value, there in zip(places, values, exists, strict=True):
                    w.masked_store(place, value, w.b.and_(mask, w.splat(there)))
            with to_scratch:
                values = transposed(w, [w.masked_load(place, mask) for place in places])
                for place, value in zip(rows, values, strict=True):
                    w.store(place, value)
    w.b.ret_void()
    return function


def transposed(w: FunctionBuilder, rows: list[ir.Value]) -> list[ir.Value]:
    """Transpose a square of vectors in log2(lanes) rounds of exchanges between rows."""
    count, distance = len(rows), 1
    while distance < count:
        found = list(rows)
        for i in range(count):
            if i & distance:
                continue
            upper, lower = rows[i], rows[i + distance]
            found[i] = w.shuffle(
                upper, lower, [count + n - distance if n & distance else n for n in range(count)]
            )
            found[i + distance] = w.shuffle(
                upper, lower, [count + n if n & distance else n + distance for n in range(count)]
            )
        rows, distance = found, 2 * distance
    return rows

"""Activations of vectors: tanh, sigmoid, rectifier.

Knows: polynomials for float32. Does not know: the source of the values.

The polynomials and the two halves of log 2 are those of the Cephes library (Moshier 1984-2000), accurate to
two units in the last place. NaN stays NaN.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from cotswold.kernels.compile.emit import I32, FunctionBuilder

_LOG2_E = 1.44269504088896341
_LOG_2_HIGH, _LOG_2_LOW = 0.693359375, -2.12194440e-4
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
_EXP_RANGE = (-87.3, 88.3)
_TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
_TANH_SMALL = 0.625
_TANH_LARGE = 10.0
_SIGMOID_LEAST = -103.0
"""Below this a float32 sigmoid is 0; from -88 down to here it is less than 1e-38 and kept at that value."""
_EXPONENT_BIAS, _MANTISSA_BITS = 127, 23


def write_activation(name: str, w: FunctionBuilder, value: ir.Value) -> ir.Value:
    """Apply the activation to a vector of float32."""
    return ACTIVATIONS[name](w, value)


def _polynomial(w: FunctionBuilder, x: ir.Value, coefficients: tuple[float, ...]) -> ir.Value:
    """Evaluate a polynomial by Horner's rule, the highest power first."""
    found = w.lanes.constant(coefficients[0])
    for one in coefficients[1:]:
        found = w.fma(found, x, w.lanes.constant(one))
    return found


def write_exp(w: FunctionBuilder, x: ir.Value) -> ir.Value:
    """e to the power x, finite and normal: x is limited to the range where the result is."""
    low, high = (w.lanes.constant(one) for one in _EXP_RANGE)
    x = w.minimum(w.maximum(x, low), high)
    power = w.rint(w.b.fmul(x, w.lanes.constant(_LOG2_E)))
    rest = w.fma(power, w.lanes.constant(-_LOG_2_HIGH), x)
    rest = w.fma(power, w.lanes.constant(-_LOG_2_LOW), rest)
    square = w.b.fmul(rest, rest)
    found = w.fma(_polynomial(w, rest, _EXP), square, w.b.fadd(rest, w.lanes.constant(1.0)))
    integers = ir.VectorType(I32, w.lanes.count)
    exponent = w.b.add(w.b.fptosi(power, integers), ir.Constant(integers, [_EXPONENT_BIAS] * w.lanes.count))
    bits = w.b.shl(exponent, ir.Constant(integers, [_MANTISSA_BITS] * w.lanes.count))
    return w.b.fmul(found, w.b.bitcast(bits, w.lanes.type))


def _tanh(w: FunctionBuilder, x: ir.Value) -> ir.Value:
    """A polynomial near 0, elsewhere ``1 - 2 / (exp(2 |x|) + 1)``, which is 1 beyond 10."""
    one = w.lanes.constant(1.0)
    size = w.minimum(w.fabs(x), w.lanes.constant(_TANH_LARGE))
    exp = write_exp(w, w.b.fadd(size, size))
    large = w.b.fsub(one, w.b.fdiv(w.lanes.constant(2.0), w.b.fadd(exp, one)))
    square = w.b.fmul(x, x)
    small = w.fma(w.b.fmul(_polynomial(w, square, _TANH), square), x, x)
    near = w.b.fcmp_ordered("<", w.fabs(x), w.lanes.constant(_TANH_SMALL))
    found = w.copysign(w.b.select(near, small, large), x)
    return w.b.select(w.b.fcmp_unordered("uno", x, x), x, found)


def _sigmoid(w: FunctionBuilder, x: ir.Value) -> ir.Value:
    one = w.lanes.constant(1.0)
    found = w.b.fdiv(one, w.b.fadd(write_exp(w, w.b.fneg(x)), one))
    found = w.b.select(w.b.fcmp_ordered("<", x, w.lanes.constant(_SIGMOID_LEAST)), w.lanes.zero, found)
    return w.b.select(w.b.fcmp_unordered("uno", x, x), x, found)


def _rectifier(w: FunctionBuilder, x: ir.Value) -> ir.Value:
    return w.b.select(w.b.fcmp_ordered("<=", x, w.lanes.zero), w.lanes.zero, x)


def _identity(w: FunctionBuilder, x: ir.Value) -> ir.Value:
    return x


ACTIVATIONS: dict[str, Callable[[FunctionBuilder, ir.Value], ir.Value]] = {
    "identity": _identity,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "relu": _rectifier,
}
CURVES = ("tanh", "sigmoid")
"""Activations whose bits differ from torch's."""

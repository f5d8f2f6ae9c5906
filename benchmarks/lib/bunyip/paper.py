"""Figures and formulas of Aberdeen, Baxter and Edwards 2000 for this experiment.

Knows: the paper. Does not know: Cotswold.
"""

from __future__ import annotations

TABLE_1 = {343_800: 0.51, 611_200: 0.46, 1_833_600: 0.33}
"""Error on held-out samples by the number of training patterns (table 1)."""
SIZES = tuple(TABLE_1)
BEST = 0.33
"""Error of section 7.1, on 6,320 samples."""
COMMON = 0.05
"""Error on the 40 % of the data with the most examples of a character (section 7.1)."""
FLOPS_PER_SECOND = 163.3e9
"""Rate sustained over four hours on 196 processors (section 7.3)."""
CENTS_PER_MFLOPS = 92.4
HARDWARE_DOLLARS = 150_913
INPUTS, HIDDEN, OUTPUTS = 400, 480, 3203


def value_flops(patterns: int, inputs: int = INPUTS, hidden: int = HIDDEN, outputs: int = OUTPUTS) -> int:
    """Return 2 n_p (n_i + n_o) n_h: FLOPs of the error over the patterns (section 6.2).

    >>> f"{value_flops(9_264_000):.2g}"
    '3.2e+13'
    """
    return 2 * patterns * (inputs + outputs) * hidden


def gradient_flops(patterns: int, inputs: int = INPUTS, hidden: int = HIDDEN, outputs: int = OUTPUTS) -> int:
    """Return n_p (4 n_i n_h + 6 n_h n_o): FLOPs of value and gradient over the patterns (section 6.2).

    >>> f"{gradient_flops(9_264_000):.2g}"
    '9.3e+13'
    """
    return patterns * (4 * inputs * hidden + 6 * hidden * outputs)

"""`cotswold bench kernels`: every operation beside its ceiling and what one would write today."""

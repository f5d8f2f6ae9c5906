"""`cotswold bench kernels`: every operation compared with the peak and with what one would write today."""

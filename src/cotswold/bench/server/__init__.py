"""`cotswold bench server`: a parameter server compared with the limits of memory and products."""

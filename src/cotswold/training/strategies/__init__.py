"""Strategies: the computation of a step. `registry` lists them, `build_*` modules assemble them."""

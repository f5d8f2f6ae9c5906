"""Strategies: the computation of a step. `registry` names them, `build_*` put them together."""

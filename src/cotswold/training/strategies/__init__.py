"""Strategies: what a step computes. `registry` names them, `builtin` has those of the package."""

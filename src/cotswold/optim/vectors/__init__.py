"""Vectors that methods compute on: one tensor, several, replicated, distributed."""

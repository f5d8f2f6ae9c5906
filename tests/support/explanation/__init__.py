"""Figures that docs/explanation quotes, and where each comes from."""

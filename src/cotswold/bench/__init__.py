"""Measurements of the user's machine beside ceilings and baselines: JSON and plots."""

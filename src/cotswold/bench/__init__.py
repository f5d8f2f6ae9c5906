"""Measurements of the user's machine beside ceilings and rivals: JSON and plots."""

"""Measurements beside ceilings and rivals: JSON and plots."""

"""Trainers: they drive a strategy and measure progress in common steps, evaluations or samples."""

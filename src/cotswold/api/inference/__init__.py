"""Evaluate, predict, features: what a trained run answers."""

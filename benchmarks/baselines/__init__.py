"""Other programs that feed trainers, each run as ``python -m baselines.NAME JSON``."""

"""Other loaders that feed trainers, each run as ``python -m baselines.NAME JSON``."""

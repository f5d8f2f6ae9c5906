"""Downpour's replicas: their processes, their coordinator, the evaluator, metrics and snapshots of a run."""

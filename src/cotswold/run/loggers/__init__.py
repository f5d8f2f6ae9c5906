"""Observers of a run's events: TensorBoard, the status file."""

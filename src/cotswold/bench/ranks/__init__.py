"""A process group that is started for a measurement and waits for work."""

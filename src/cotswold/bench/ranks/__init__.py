"""Processes of one group that are started for a measurement and wait for work."""

"""Processes of parameter servers."""

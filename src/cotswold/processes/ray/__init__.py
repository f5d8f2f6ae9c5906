"""Processes that Ray starts on the machines of its cluster."""

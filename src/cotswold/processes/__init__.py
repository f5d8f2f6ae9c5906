"""Supervision of processes: start, restart, backoff, hangs, credentials, Ray."""

"""Callbacks: objects that observe a run and may change its course at defined moments."""

"""Ranks beside one process, exchanges beside raw messages, ranks on several hosts."""

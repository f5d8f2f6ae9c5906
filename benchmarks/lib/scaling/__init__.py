"""Ranks compared with one process, exchanges compared with raw messages, ranks on several hosts."""

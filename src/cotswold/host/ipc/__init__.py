"""Channels between processes of one host: shared memory, TCP, tagged messages."""

"""Transports of exchanges: shared memory, sockets, or torch's point-to-point messages."""

"""How messages of exchanges travel: shared memory, sockets, or torch's point-to-point messages."""

"""Parameter stores: in memory, offloaded to disk, sharded over ranks."""

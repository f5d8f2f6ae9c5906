"""Parameter servers: sessions, staleness, updates, checkpoints by markers (DistBelief's Downpour SGD)."""

"""The parameter vector, cut over servers: shared by batch, paramserver and replication."""

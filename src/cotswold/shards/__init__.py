"""The parameter vector, split over servers: shared by batch, paramserver and replication."""

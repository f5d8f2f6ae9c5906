"""Servers and clients that a program starts: parameter servers, data servers, hosts of a cluster, workers."""

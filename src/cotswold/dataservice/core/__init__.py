"""State machines of data servers and their clients: no sockets, clocks, disks, threads or tensors."""

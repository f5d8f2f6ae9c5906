"""State machines of parameter servers, their clients and the dispatcher: no sockets, clocks, disks, threads
or tensors."""

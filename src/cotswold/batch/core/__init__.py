"""State machines of whole-set gradients: no sockets, clocks, disks, threads or tensors."""

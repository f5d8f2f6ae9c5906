"""State machines and ledgers that several systems use: no sockets, clocks, disks, threads or tensors."""

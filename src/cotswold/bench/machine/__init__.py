"""`cotswold bench machine`: rates of this machine's devices and links, in the format of a cluster file."""

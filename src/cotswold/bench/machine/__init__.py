"""`cotswold bench machine`: rates of this machine's devices and links, as a cluster's file has them."""

"""Studies of the attention kernels: times over tiles and rows, cache lines that they move, and their roofline."""

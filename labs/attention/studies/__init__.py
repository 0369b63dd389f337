"""Studies of the attention kernels: times over tiles and rows, moved cache lines, and the roofline."""

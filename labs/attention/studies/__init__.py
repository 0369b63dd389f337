"""Studies of attention's loops: sweeps over their tiles and rows, the cache lines they move, their roofline."""

"""Studies of the lab operators, besides the kit's general ones and `train`."""

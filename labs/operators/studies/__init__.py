"""Studies of the operators beside the kit's general ones."""

"""Studies of this lab, besides the kit's general ones."""

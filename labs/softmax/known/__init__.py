"""Tables of wrong and right kernels, as named edits of the master. For the staff, not handed out."""

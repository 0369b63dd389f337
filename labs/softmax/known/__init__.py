"""Tables of wrong and right kernels, as named edits of the master. Only for the staff; a handout lacks this package."""

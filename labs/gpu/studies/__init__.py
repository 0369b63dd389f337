"""Studies of this lab's own: waves, roofline, profile, memory of attention. All of them need a GPU."""

"""Studies of the GPU lab: profile, ladder, roofline, waves, and memory of attention. All of them need a GPU."""

"""Studies of this lab's own: simulated traffic, and the accuracy of the student's parts."""

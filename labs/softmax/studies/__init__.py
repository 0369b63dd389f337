"""Studies of this lab: simulated traffic, and the accuracy of the student's parts."""

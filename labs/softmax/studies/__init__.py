"""Studies of the lab softmax: simulated traffic, and the accuracy of the student's parts."""

"""What `study` makes in a row: every table of the write-up."""

from __future__ import annotations

from grader.study.together import Step

#: In the order of the write-up.
STEPS = (
    Step("machine", "machine"),
    Step("sweep-part2", "sweep", "part2", (), ("--tile", "4,16,64", "-N", "256")),
    Step("cache", "cache"),
    Step("roofline", "roofline", "", (), ("-N", "256")),
    Step("memory", "memory", "", ("-N", "256,512,1024,2048"), ("-N", "128,256")),
    Step("scaling-part3", "sweep", "part3", ("-N", "128,256,512,1024,2048"), ("-N", "64,128,256")),
    Step("threads-part3", "threads", "part3", ("--threads", "1,2,4,8"), ("--threads", "1,2,4", "-N", "256")),
    Step("race", "race", "part3"),
    Step("sweep-part4", "sweep", "part4", (), ("--br", "16,64", "--bc", "16,64", "-N", "256")),
)

"""What `study` makes in a row: every table of the write-up."""

from __future__ import annotations

from grader.study.together import Step

#: In the order of the write-up.
STEPS = (
    Step("machine", "machine"),
    Step("accuracy", "accuracy", "", (), ("--columns", "16,1024,65536")),
    Step("traffic", "traffic"),
    Step("memory", "memory", "", (), ("-C", "256,512")),
)

"""What `study` makes in a row: every table of the write-up."""

from __future__ import annotations

from grader.study.together import Step

#: In the order of the write-up.
STEPS = (
    Step("profile", "profile", "gelu"),
    Step("ladder", "ladder", "flash_forward"),
    Step("roofline", "roofline"),
    Step("waves", "waves", "", (), ("--sizes", "1024,2048,3072,4096")),
    Step("attention-memory", "attention-memory", "", (), ("--lengths", "512,1024,2048")),
)

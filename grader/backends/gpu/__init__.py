"""Files of Triton, PyTorch and CUDA: read, built, called in the interpreter or on a card, and played again.

`devicerunner`, `kernelfiles`, `tensormemory`, `tracing`, `replay`, `torchwork`, `cardlike` and `userspace` stand beside
a stranger's code and import nothing of the kit.
"""

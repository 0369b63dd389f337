"""Files of Triton, PyTorch and CUDA: read, built, called in the interpreter or on a GPU, and replayed.

`devicerunner`, `kernelfiles`, `tensormemory`, `tracing`, `replay`, `torchwork`, `cardlike` and `userspace` run beside
untrusted code and import nothing of the kit.
"""

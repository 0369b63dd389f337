"""The GPU backend: it reads, builds, calls and replays files with Triton, PyTorch and CUDA, on a GPU or in Triton's
interpreter.

In this package a "card" is a GPU. `devicerunner`, `kernelfiles`, `tensormemory`, `tracing`, `replay`, `torchwork` and
`cardlike` run beside untrusted code and import nothing of the kit.
"""

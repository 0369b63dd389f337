"""The GPU backend: it builds, calls and times files with Triton, PyTorch or CUDA code, on a GPU or in Triton's
interpreter. It also replays recorded calls on other inputs, to check that kernels computed the results.

In this package a "card" is a GPU. `devicerunner`, `kernelfiles`, `tensormemory`, `tracing`, `replay`, `torchwork` and
`cardlike` run beside untrusted code and import nothing of the kit.
"""

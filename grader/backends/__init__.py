"""Backends: each builds, starts, calls and times one kind of hand-in. `native` is for C++, `torch` for C++ with torch,
`gpu` for GPU kernels.

All implement `protocol.Backend`, and `selection` chooses one for each part. May import `core`, `assignment`, `sandbox`,
`source`, `runner` and `integrity`.
"""

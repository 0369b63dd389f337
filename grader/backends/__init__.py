"""Builds, starts, calls and times each kind of hand-in: `native` C++, C++ beside `torch`, kernels for a `gpu`.

All are a `protocol.Backend`, and `selection` chooses one for a part; no other room distinguishes them. May import
`core`, `assignment`, `sandbox`, `source`, `runner` and `integrity`.
"""

"""Builds, starts and calls each kind of hand-in: `native` C++, C++ beside `torch`, kernels for a `gpu`.

May import `core`, `assignment`, `sandbox`, `source` and `runner`.
"""

"""Sessions with a runner: requests, replies, clocks, and observations of the runner's process from outside.

All backends use this package. Its module `runner` is the untrusted side of a session and imports nothing of the kit.
The other modules are the trusted side. May import `core` and `sandbox`.
"""

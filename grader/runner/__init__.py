"""Sessions with a runner: requests and replies, the clock, and a runner's CPU time and memory, measured from outside.

All backends use this package. Its module `runner` is the untrusted side of a session and imports nothing of the kit.
The other modules are the trusted side. May import `core` and `sandbox`.
"""

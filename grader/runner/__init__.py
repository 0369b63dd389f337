"""One request, one reply: sessions with a runner, the clock, and CPU and memory as seen from outside.

All backends share it. `runner` is the untrusted side of a session and imports nothing of the kit; the rest is the
trusted side. May import `core` and `sandbox`.
"""

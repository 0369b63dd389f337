"""Limits of the time that all calls of one part take together, in one runner or in several.

A call has a limit of its own, which a kernel can use up in each of some sixty calls. Waiting for a busy core does not
count where the system shows it.
"""

from __future__ import annotations

from grader.runner.calls import Call

MOST_CALLS, MOST_IDLE_CALLS = 15, 2
"""Limits of all calls of a part, in multiples of the limit of one call: their time, and the time in which no thread
runs or could run. An honest kernel waits for milliseconds. One that is 30 times slower than a reference whose calls
take a hundredth of the limit uses a third of the first."""


class Budget:
    """Seconds that one part of one submission has used."""

    def __init__(self, call_s: float) -> None:
        self.call_s = call_s
        self.used_s = self.idle_s = 0.0

    def spend(self, call: Call) -> None:
        self.used_s += call.wall_s if call.own_s is None else call.own_s
        self.idle_s += call.idle_s or 0.0

    def excess(self) -> str:
        """Return the reason why no further call is made, or ""."""
        if self.idle_s > MOST_IDLE_CALLS * self.call_s:
            return (
                f"the calls before it waited for {self.idle_s:.0f} s without computing, and all calls of a part may "
                f"wait for {MOST_IDLE_CALLS * self.call_s:.0f} s. Remove what sleeps or waits"
            )
        if self.used_s > MOST_CALLS * self.call_s:
            return (
                f"the calls before it took {self.used_s:.0f} s, and all calls of a part may take "
                f"{MOST_CALLS * self.call_s:.0f} s. Make the function faster, first on its largest input"
            )
        return ""

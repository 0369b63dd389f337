"""The verdict on time: rounds of calls in new processes, their time ratios, and the rule that decides."""

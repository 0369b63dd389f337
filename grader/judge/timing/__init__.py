"""The verdict on time: rounds of fresh processes, ratios and the rule that decides."""

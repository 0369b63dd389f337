"""A class: submissions, workers, the ledger that survives every kill, and the reports from it."""

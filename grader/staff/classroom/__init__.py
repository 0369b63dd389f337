"""A class: who handed in what, workers, the ledger that no kill loses, and the reports from it."""

"""Grading of a class: submissions, worker processes, the ledger (the file that records results), and the reports."""

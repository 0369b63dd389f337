"""Grading of a class: its submissions, the workers, the ledger of results, and the reports."""

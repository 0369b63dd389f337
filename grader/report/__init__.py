"""What people and other programs read of a result: each a pure function of the records in `grader.base.results`."""

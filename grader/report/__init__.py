"""Reports for people and for other programs: each a pure function of the records in `grader.core.results`."""

"""Reports for people and for other programs, made only from the records in `grader.core.results`."""

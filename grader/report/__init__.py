"""Reports for people and for other programs, made from the records in `grader.core.results` alone."""

"""Search for submissions that share more than an assignment explains."""

"""Which submissions share more than an assignment explains."""

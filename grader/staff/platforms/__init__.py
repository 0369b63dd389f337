"""Where courses live: what a platform hands in, what it wants back, and what a student may see there."""

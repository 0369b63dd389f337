"""The write-up: a Markdown text with marked regions for answers and measured tables."""

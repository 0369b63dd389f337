"""A tiny GPT that speaks through the student's kernel: corpus, tokenizer, model, training, decoding, comparison."""

import warnings

# Without NumPy, which nothing here needs, torch warns of its absence when it is imported.
warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

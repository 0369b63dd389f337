"""Demo: a tiny GPT generates text with the student's attention kernel. Corpus, tokenizer, model, training, decoding."""

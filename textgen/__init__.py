"""A tiny GPT that uses the student's kernel: corpus, tokenizer, model, training, decoding, comparison."""

"""A tiny GPT that speaks through the student's kernel: corpus, tokenizer, model, training, decoding, comparison."""

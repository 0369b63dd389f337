"""A tiny GPT that generates text with the student's attention kernel: corpus, tokenizer, model, training, decoding."""

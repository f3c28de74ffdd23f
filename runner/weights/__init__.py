"""Where a model's numbers come from: Hugging Face folders, GGUF files, and the Hub."""

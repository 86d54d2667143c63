"""Data: from what a user gave to an immutable directory of tokens, checked line by line on the way."""

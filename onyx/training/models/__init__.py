"""Models: from a name to a directory that transformers loads, and from there to what a rank trains."""

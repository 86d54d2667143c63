"""`make demo`: the real service, a real fine-tune over HTTP, and what the model says before and after."""

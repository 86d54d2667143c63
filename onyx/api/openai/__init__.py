"""OpenAI's files, fine-tuning jobs and models: the same jobs as everywhere in Onyx, in the words of that API."""

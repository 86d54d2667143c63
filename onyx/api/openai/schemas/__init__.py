"""Bodies and answers of OpenAI's API, one module per resource. Class names and field names are part of openapi.json."""

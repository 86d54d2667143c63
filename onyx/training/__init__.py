"""One rank's work: data, model, loop, checkpoint, export. Knows no job table and no HTTP."""

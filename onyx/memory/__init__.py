"""What is there (devices), what a step needs (footprint), what to run (plan)."""

"""HTTP: what is asked and answered. Translates, and does nothing itself; never imports torch."""

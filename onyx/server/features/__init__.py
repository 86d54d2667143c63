"""See `onyx.server`."""

"""Documented import paths, kept stable for users: `onyx.server.features.ads.*`. The code is in the other packages."""

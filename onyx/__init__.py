"""Onyx: fine-tuning that fits, is exact and is not lost."""

__version__ = "0.1.0"

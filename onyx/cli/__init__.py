"""The `onyx` command line. Importing it is quick: what a command needs is imported when it runs."""

from onyx.cli.app import main

__all__ = ["main"]

"""The `onyx` command line.

Start reading in app.py, which registers the commands of commands/. Commands that talk to a service use client.py (HTTP
only); commands on the service's host use operator.py, which reads the settings and opens the job store.

Importing this package stays quick: at the top its modules import typer, the standard library and small modules of onyx
without dependencies; a command imports everything else inside its functions.
"""

from onyx.cli.app import main

__all__ = ["main"]

"""`python -m onyx.cli`."""

from onyx.cli.app import main

main()

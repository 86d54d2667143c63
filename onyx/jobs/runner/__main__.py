"""`python -m onyx.jobs.runner`."""

from onyx.jobs.runner.main import main

main()

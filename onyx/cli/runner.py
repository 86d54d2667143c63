"""`onyx runner`: a runner in the foreground, for further hosts and for units of their own."""

import asyncio

from onyx.cli.errors import CommandFailure
from onyx.cli.operator import read_settings, start_logging


def run() -> None:
    """Train jobs on this host's devices until SIGTERM or Ctrl-C; then ranks save and their jobs are requeued."""
    settings = read_settings()
    start_logging(settings)

    from onyx.jobs.child import put_on_name
    from onyx.jobs.errors import StoreError
    from onyx.jobs.lock import locked_by, only_one
    from onyx.jobs.runner import serve

    put_on_name("onyx-runner")
    try:
        with only_one(settings.run_dir, embedded=False) as alone:
            if not alone:
                other = locked_by(settings.run_dir)
                who = f" (pid {other.pid})" if other else ""
                raise CommandFailure(
                    f"{settings.home} already has a runner on this host{who}: "
                    "set ONYX_EMBEDDED_RUNNER=false where `onyx serve` should start none"
                )
            asyncio.run(serve(settings))
    except StoreError as error:
        raise CommandFailure(f"the job store cannot be used: {error}") from None
    except OSError as error:
        raise CommandFailure(f"{settings.home} cannot be used: {error.strerror}; name another with ONYX_HOME") from None

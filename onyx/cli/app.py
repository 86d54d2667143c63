"""All commands under one name, and the one place where what went wrong becomes an exit status."""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from onyx import __version__
from onyx.cli.commands import db, doctor, download, jobs, keys, models, plan, serve, submit, watch
from onyx.cli.commands import serve as runner
from onyx.cli.output import CommandFailure, complain, say

app = typer.Typer(
    name="onyx",
    help="Self-hosted fine-tuning: it fits, it is exact, it is not lost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def onyx(
    version: Annotated[bool, typer.Option("--version", help="Say which version this is.")] = False,
) -> None:
    """Self-hosted fine-tuning: it fits, it is exact, it is not lost."""
    if version:
        say(f"onyx {__version__}")
        raise typer.Exit


app.command("serve")(serve.serve)
app.command("runner")(runner.run)
app.command("plan")(plan.plan)
app.command("doctor")(doctor.doctor)
jobs.app.command("submit")(submit.submit)
jobs.app.command("watch")(watch.watch)
jobs.app.command("download")(download.download)
for part, name in ((jobs.app, "jobs"), (models.app, "models"), (keys.app, "keys"), (db.app, "db")):
    app.add_typer(part, name=name)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command. Exit status 1 when it failed, 2 when it was asked for wrongly."""
    try:
        app(list(arguments) if arguments is not None else None)
    except CommandFailure as failure:
        complain(str(failure))
        sys.exit(failure.status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # whoever read our output has read enough
        sys.stderr.close()
        sys.exit(1)
    sys.exit(0)

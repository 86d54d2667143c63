"""Registers all commands under `onyx`, and turns their errors into exit statuses."""

import sys
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from onyx import __version__
from onyx.cli.commands import db, doctor, download, jobs, keys, models, plan, serve, submit, watch
from onyx.cli.output import CommandError, print_line, print_stderr

app = typer.Typer(
    name="onyx",
    help="Self-hosted fine-tuning: it fits, it is exact, it is not lost.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def onyx(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Self-hosted fine-tuning: it fits, it is exact, it is not lost."""
    if version:
        print_line(f"onyx {__version__}")
        raise typer.Exit


app.command("serve")(serve.serve)
app.command("runner")(serve.run_runner)
app.command("plan")(plan.plan)
app.command("doctor")(doctor.doctor)
jobs.app.command("submit")(submit.submit)
jobs.app.command("watch")(watch.watch)
jobs.app.command("download")(download.download)
for group, name in ((jobs.app, "jobs"), (models.app, "models"), (keys.app, "keys"), (db.app, "db")):
    app.add_typer(group, name=name)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command. The exit status is 1 when it fails and 2 when its arguments or settings are wrong."""
    try:
        app(list(arguments) if arguments is not None else None)
    except CommandError as failure:
        print_stderr(str(failure))
        sys.exit(failure.status)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of our output, such as `head`, has closed the pipe
        sys.stderr.close()
        sys.exit(1)
    sys.exit(0)

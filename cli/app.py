"""The command ``tunedb`` itself: its commands, its options, and how errors end."""

from __future__ import annotations

import errno
import traceback
from typing import Any, NoReturn

import click

from ..errors import TuneDBError
from .lazy import LazyGroup
from .options import common_options, prepare_streams, settings_of
from .text import clean

INTERRUPTED = 130

EXIT_CODES = {
    0: "done",
    1: "it ran and found problems, or the medium refused",
    2: "the command cannot be carried out as written",
    3: "a workload, target, record or file that does not exist",
    4: "the database has another schema, or is none",
    5: "another process held the database for too long, or its server does not answer",
    INTERRUPTED: "interrupted; what was finished stays",
}

COMMANDS = {
    "tune": ("tuning.tune", "command", "Tune a module with all that the database knows."),
    "apply": (
        "tuning.apply",
        "command",
        "Compile a module with the best stored programs, or write it scheduled.",
    ),
    "revalidate": (
        "tuning.revalidate",
        "command",
        "Measure the best programs again, and check what they compute.",
    ),
    "import": ("logs.import_logs", "command", "Bring other tools' logs into the database."),
    "export": ("logs.export", "command", "Write records as files of other tools."),
    "bundle": ("exchange.bundle", "command", "Write records into one file that others merge."),
    "push": ("exchange.push", "command", "Give a server what is new here."),
    "pull": ("exchange.pull", "command", "Take over what is new on a server."),
    "merge": ("exchange.merge", "command", "Take over the records of other databases and bundles."),
    "top": ("records.top", "command", "Show the best programs of a workload, or of each."),
    "show": ("records.show", "command", "Show everything about one record."),
    "history": ("records.history", "command", "Show how the best time fell as records came in."),
    "workloads": ("records.workloads", "command", "List the workloads."),
    "targets": ("records.targets", "command", "List the targets."),
    "sessions": (
        "records.sessions",
        "command",
        "Show how sessions differ that measured the same programs.",
    ),
    "sources": (
        "trust.sources",
        "command",
        "List where records came from, and how far it is trusted.",
    ),
    "trust": ("trust.trust", "command", "Say how far a source is believed."),
    "retract": (
        "trust.retract",
        "command",
        "Take records back: they stay stored and are never served.",
    ),
    "extract": ("models.extract", "command", "Compute features for programs that have none."),
    "features": (
        "models.features",
        "command",
        "List the feature sets, their columns and coverage.",
    ),
    "train": (
        "models.train",
        "command",
        "Train a cost model from what was measured, and keep it in the database.",
    ),
    "evaluate": ("models.evaluate", "command", "Judge cost models on what they have not seen."),
    "models": (
        "models.registry",
        "command",
        "List the cost models, show their cards and watch their predictions.",
    ),
    "explain": (
        "models.explain",
        "command",
        "Show what a model looks at, why a program has its score, or why a module has no record.",
    ),
    "advise": ("advise.group", "command", "Choose thread-block sizes of GPU kernels."),
    "report": ("advise.report", "command", "Write pages that explain what the database holds."),
    "quarantine": ("logs.quarantine", "command", "Look after what imports did not understand."),
    "prune": ("database.prune", "command", "Remove what the database can do without."),
    "vacuum": ("database.vacuum", "command", "Give back the space of rows that are gone."),
    "db": ("database.db", "command", "Make, upgrade, check, describe and approve databases."),
    "plugins": (
        "plugins",
        "command",
        "List the log formats, feature sets and parts of models, and whether they load.",
    ),
    "completion": ("completion", "command", "Print the completion script of a shell."),
}


class _Failed(click.ClickException):
    """An error of the library as click prints it: one line, and the exit code of its class."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(clean(message))
        # click calls it a class variable and reads it from the instance.
        self.exit_code = exit_code  # type: ignore[misc]


class _App(LazyGroup):
    """The top group, where every error becomes one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        prepare_streams()
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            click.echo("Interrupted", err=True)
            raise click.exceptions.Exit(INTERRUPTED) from None
        except TuneDBError as error:
            _fail(ctx, error, str(error), error.exit_code)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `tunedb top | head`; click ends quietly
                raise
            named = f"{error.filename}: " if error.filename else ""
            _fail(ctx, error, f"{named}{error.strerror or error}", 1)
        except Exception as error:
            advice = "this is a bug of tunedb; run it again with --debug and report what it prints"
            _fail(ctx, error, f"{type(error).__name__}: {error} ({advice})", 1)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the table of exit codes and where the database comes from."""
        with formatter.section("Which database"):
            formatter.write_text(
                "--db, then TUNEDB_URL, then url in a tunedb.toml of this directory or one above "
                "it, then tune.db in the user's data directory."
            )
        with formatter.section("Output"):
            formatter.write_text(
                "Tables on a terminal, plain aligned text in a pipe; --json, --jsonl and --csv "
                "for programs. Data on stdout, everything else on stderr."
            )
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


def _fail(ctx: click.Context, error: Exception, message: str, exit_code: int) -> NoReturn:
    """End with one line, after the traceback where it is wanted."""
    if settings_of(ctx).debug:
        click.echo(clean_trace("".join(traceback.format_exception(error))), err=True)
    raise _Failed(message, exit_code) from None


def clean_trace(text: str) -> str:
    """Return a traceback with control characters escaped but for its line breaks."""
    return "\n".join(clean(line) for line in text.split("\n"))


@click.group(
    cls=_App,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="tunedb", message="tunedb %(version)s")
@common_options
def main() -> None:
    """Keep what TVM's tuning loop has measured, and ask for it.

    Example:
      tunedb import logs ./work_dirs      # bring tuning logs in
      tunedb top                          # the best program of each workload
      tunedb top matmul -k 5              # the five best of one
      tunedb show 42                      # everything about a record
    """

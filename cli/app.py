"""The command ``tunedb``: its subcommands, its options, and the exit codes of errors."""

from __future__ import annotations

import errno
import traceback
from typing import Any, NoReturn

import click

from ..errors import TuneDBError
from ..system.text import clean
from .interrupt import INTERRUPTED, interrupted
from .lazy import LazyGroup
from .options import common_options, prepare_streams, settings_of

EXIT_CODES = {
    0: "done",
    1: "the command ran and found problems, or the disk or server failed",
    2: "the command cannot run as written",
    3: "a workload, target, record or file does not exist",
    4: "the database has another schema, or the file is not a tunedb database",
    5: "another process locked the database for too long, or its server does not answer",
    INTERRUPTED: "interrupted; finished work stays stored",
}

COMMANDS = {
    "tune": (
        "tuning.tune",
        "command",
        "Tune a module, or several networks, from the records of the database.",
    ),
    "apply": (
        "tuning.apply",
        "command",
        "Compile a module with the best stored programs, or write its scheduled TVMScript.",
    ),
    "revalidate": (
        "tuning.revalidate",
        "command",
        "Measure the best programs again, and check their results.",
    ),
    "import": ("logs.import_logs", "command", "Import logs of other tools into the database."),
    "convert": (
        "logs.convert",
        "command",
        "Convert auto_scheduler's records to schedules of today's TVM.",
    ),
    "export": ("logs.export", "command", "Export records as logs of other tools."),
    "bundle": ("exchange.bundle", "command", "Write records into one file that others can merge."),
    "push": ("exchange.sync", "push", "Send new records to a server."),
    "pull": ("exchange.sync", "pull", "Fetch new records from a server."),
    "merge": ("exchange.merge", "command", "Merge the records of other databases and bundles."),
    "top": (
        "records.top",
        "command",
        "Show the best programs of one workload, or of every workload.",
    ),
    "show": ("records.show", "command", "Show everything about one record."),
    "history": ("records.history", "command", "Show how the best time improved with each record."),
    "workloads": ("records.workloads", "command", "List the workloads."),
    "targets": ("records.targets", "command", "List the targets."),
    "sessions": (
        "records.sessions",
        "command",
        "Compare sessions that measured the same programs.",
    ),
    "sources": (
        "trust.sources",
        "command",
        "List the sources of records, and their trust.",
    ),
    "trust": ("trust.trust", "command", "Set the trust in a source."),
    "retract": (
        "trust.retract",
        "command",
        "Retract records: they stay stored and are never served.",
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
        "Train a cost model on the measurements, and store it in the database.",
    ),
    "evaluate": ("models.evaluate", "command", "Evaluate cost models on held-out data."),
    "simulate": (
        "models.simulate",
        "command",
        "Compare settings of the search on stored measurements.",
    ),
    "models": (
        "models.registry",
        "command",
        "List the cost models, show their cards and check their predictions.",
    ),
    "explain": (
        "models.explain",
        "command",
        "Explain the scores of a cost model, or why a module has no record.",
    ),
    "advise": ("advise.group", "command", "Choose thread-block sizes of GPU kernels."),
    "report": ("report.group", "command", "Write a page about the database: look instead of read."),
    "quarantine": (
        "logs.quarantine",
        "command",
        "List, show and retry the lines that imports could not parse.",
    ),
    "prune": (
        "database.prune",
        "command",
        "Remove records, features and models that you no longer need.",
    ),
    "vacuum": ("database.vacuum", "command", "Free the disk space of removed rows."),
    "db": ("database.db", "command", "Create, upgrade, check, describe and approve databases."),
    "plugins": (
        "plugins",
        "command",
        "List formats, feature sets, model components and definitions, and whether they load.",
    ),
    "demo": (
        "tuning.demo",
        "command",
        "Show the main job: tune, ask, compile, tune again and others, export, import.",
    ),
    "doctor": (
        "doctor",
        "command",
        "Check the installation, this machine and the database, and say what to do.",
    ),
    "completion": ("completion", "command", "Print the completion script of a shell."),
}


class _CommandError(click.ClickException):
    """An error as click prints it: one line, and the exit code of the error's class."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(clean(message))
        # click declares a class variable and reads it from the instance.
        self.exit_code = exit_code  # type: ignore[misc]


class _App(LazyGroup):
    """The top group, which turns every error into one line and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        prepare_streams()
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except KeyboardInterrupt:
            raise interrupted("Interrupted") from None
        except TuneDBError as error:
            _fail(ctx, error, str(error), error.exit_code)
        except OSError as error:
            if error.errno == errno.EPIPE:  # `tunedb top | head`; click ends quietly
                raise
            prefix = f"{error.filename}: " if error.filename else ""
            _fail(ctx, error, f"{prefix}{error.strerror or error}", 1)
        except Exception as error:
            advice = (
                "this is a bug in tunedb; run the command again with --debug and report the output"
            )
            _fail(ctx, error, f"{type(error).__name__}: {error} ({advice})", 1)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write how the database is chosen, the output formats and the exit codes."""
        with formatter.section("Which database"):
            formatter.write_text(
                "The first of: --db, TUNEDB_URL, url in a tunedb.toml of this directory or a "
                "parent directory, tune.db in the user's data directory."
            )
        with formatter.section("Output"):
            formatter.write_text(
                "A terminal gets tables, a pipe gets plain aligned text; --json, --jsonl and --csv "
                "are for programs. Data goes to stdout, messages go to stderr."
            )
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])


def _fail(ctx: click.Context, error: Exception, message: str, exit_code: int) -> NoReturn:
    """Exit with one line, after the traceback with ``--debug``."""
    if settings_of(ctx).debug:
        click.echo(clean_trace("".join(traceback.format_exception(error))), err=True)
    raise _CommandError(message, exit_code) from None


def clean_trace(text: str) -> str:
    """Return a traceback with all control characters but line breaks escaped."""
    return "\n".join(clean(line) for line in text.split("\n"))


@click.group(
    cls=_App,
    lazy=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="tunedb", message="tunedb %(version)s")
@common_options
def main() -> None:
    """Store the measurements of TVM's tuning loop, and query them.

    Example:
      tunedb import logs ./work_dirs      # import tuning logs
      tunedb top                          # the best program of each workload
      tunedb top matmul -k 5              # its five best programs
      tunedb show 42                      # everything about one record
    """
    from ..models._xgboost import leave_out_sklearn

    leave_out_sklearn()

"""``tunedb doctor``."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .options import Settings, common_options, pass_settings
from .output import Column, is_terminal, output_options, print_rows

if TYPE_CHECKING:
    from ..storage.config import Location

OK, WARNING, PROBLEM = "ok", "warning", "problem"

COLUMNS = tuple(map(Column, ("status", "check", "message", "command")))

_COLOURS = {OK: "green", WARNING: "yellow", PROBLEM: "red"}

#: Distribution → extra and purpose.
_EXTRAS = {
    "psycopg": ("postgres", "a team's server"),
    "onnx": ("onnx", "ONNX files"),
    "jinja2": ("report", "pages of tunedb report"),
    "scikit-learn": ("advise", "training the advisor for thread blocks"),
}

#: Free bytes below which a disk is a problem, or worth a warning.
_FULL, _SCARCE = 100 << 20, 2 << 30

#: Bytes of the largest file that SQLite checks here; a second for each GB on a fast disk.
_LARGE_FILE = 2 << 30

#: Seconds for everything that TVM does here.
_TVM_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the command's output.

    Parameters
    ----------
    status : str
        ``ok``, ``warning`` (something is missing or slow) or ``problem`` (something fails).
    check : str
        Subject of the check.
    message : str
        Result of the check.
    command : str or None
        Command that mends it.
    """

    status: str
    check: str
    message: str
    command: str | None = None

    @classmethod
    def from_error(cls, check: str, error: Exception | str, status: str = PROBLEM) -> Finding:
        """Return the finding of an error, whose message may end with the command to run."""
        message, _, command = str(error).partition("run: ")
        return cls(status, check, message.rstrip(";, "), command or None)


@click.command()
@output_options
@common_options
@pass_settings
def command(settings: Settings) -> None:
    """Check the installation, this machine and the database, and say what to do.

    Each line is ok, a warning (an extra is missing, cores stay idle, space is scarce) or a problem
    (tuning or the database would fail), with the command that mends it. TVM is tried in a process
    of its own: it compiles, links and runs a program. Nothing is changed. The exit code is 1 if
    there is a problem.

    Example:
      tunedb doctor
      tunedb doctor --db postgresql://tuning@server/tunedb
      tunedb doctor --json                # for a bug report
    """
    findings: list[Finding] = []

    def follow() -> Iterator[Finding]:
        for finding in _examine(settings):
            findings.append(finding)
            yield finding

    lines = follow()
    rows = (asdict(finding) for finding in lines)
    print_rows(settings, COLUMNS, rows, show=lambda: _show(lines))
    if any(finding.status == PROBLEM for finding in findings):
        raise click.exceptions.Exit(1)


def _show(findings: Iterable[Finding]) -> None:
    """Print each finding as soon as it is there, then how many are not ok."""
    from ..system.text import clean, count

    numbers = dict.fromkeys(_COLOURS, 0)
    for finding in findings:
        numbers[finding.status] += 1
        status = finding.status.ljust(7)
        if is_terminal() and not os.environ.get("NO_COLOR"):
            status = click.style(status, fg=_COLOURS[finding.status])
        click.echo(f"{status}  {finding.check.ljust(12)}  {clean(finding.message)}")
        if finding.command is not None:
            click.echo(f"{'':23}run: {clean(finding.command)}")
    warnings, problems = count(numbers[WARNING], "warning"), count(numbers[PROBLEM], "problem")
    click.echo(f"{problems}, {warnings}")


def _examine(settings: Settings) -> Iterator[Finding]:
    yield _installation()
    yield from _tvm()
    yield _xgboost()
    yield from map(_extra, _EXTRAS)
    yield from _database(settings)
    yield from _server()
    yield from _prior()
    yield _space(Path(tempfile.gettempdir()))


def _installation() -> Finding:
    release = f"{platform.system()} {platform.machine()}"
    version = metadata.version("tunedb")
    return Finding(OK, "tunedb", f"{version}, Python {platform.python_version()}, {release}")


# ---------------------------------------------------------------------- packages


def _tvm() -> Iterator[Finding]:
    """Check the installed pair, then let TVM check itself where it may end its process."""
    from ..errors import PluginError

    try:
        from ..plugins.metaschedule.compat import check_versions

        check_versions()
    except PluginError as error:
        # Logs, merges and lists work without TVM; a pair that does not fit serves nothing.
        status = WARNING if _version("apache-tvm") is None else PROBLEM
        yield Finding.from_error("TVM", error, status)
        return
    yield from _self_check()


def _self_check() -> Iterator[Finding]:
    import json
    import subprocess

    # -P: a folder "tvm" of the working directory is not imported.
    command = (sys.executable, "-P", "-m", "tunedb.plugins.metaschedule.self_check")
    again = "pip install --force-reinstall 'tunedb[tvm]'"
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_TVM_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        yield Finding(PROBLEM, "TVM", f"no answer after {_TVM_TIMEOUT_S:.0f} s", again)
        return
    for line in done.stdout.splitlines():
        if line.startswith("["):
            yield Finding(*json.loads(line))
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        end = f"signal {-done.returncode}" if done.returncode < 0 else f"exit {done.returncode}"
        yield Finding(PROBLEM, "TVM", f"its process ended early ({end}): {last}", again)


def _xgboost() -> Finding:
    from ..errors import PluginError
    from ..models._xgboost import import_xgboost, installed

    try:
        distribution = installed()
        if distribution is None:
            message = "not installed; needed for cost models"
            return Finding(WARNING, "XGBoost", message, "pip install 'tunedb[train]'")
        version = import_xgboost().__version__
    except PluginError as error:
        return Finding.from_error("XGBoost", error)
    return Finding(OK, "XGBoost", f"{distribution} {version}")


def _extra(distribution: str) -> Finding:
    extra, purpose = _EXTRAS[distribution]
    version = _version(distribution)
    if version is None:
        message = f"not installed; needed for {purpose}"
        return Finding(WARNING, distribution, message, f"pip install 'tunedb[{extra}]'")
    return Finding(OK, distribution, version)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------------- databases


def _database(settings: Settings) -> Iterator[Finding]:
    from ..errors import NotFoundError, TuneDBError
    from ..storage.engine import parse_url, sqlite_path
    from ..storage.network_filesystem import refuse_network_file

    try:
        location = settings.locate()
        path = sqlite_path(parse_url(location.url))
    except TuneDBError as error:
        yield Finding.from_error("database", error)
        return
    if path is not None:
        folder = _existing_parent(path)
        yield _space(folder)
        finding = _folder(location, path, folder)
        yield finding
        if finding.status == PROBLEM:
            return
    try:
        refuse_network_file(path)
        yield from _contents("database", location)
    except NotFoundError:
        message = f"{path} ({location.origin}) does not exist; the first tune or import makes it"
        yield Finding(OK, "database", message)
    except TuneDBError as error:
        yield Finding.from_error("database", error)


def _existing_parent(path: Path) -> Path:
    """Return the nearest folder above a path that exists."""
    return next(parent for parent in path.absolute().parents if parent.is_dir())


def _folder(location: Location, path: Path, existing: Path) -> Finding:
    """Check the permissions of a database's folder, and of its file."""
    import shlex

    folder = path.absolute().parent
    if existing != folder and not location.is_default:
        command = f"mkdir -p {shlex.quote(str(folder))}"
        return Finding(PROBLEM, "folder", f"{folder} does not exist", command)
    for place in (existing, path):
        if place.exists() and not os.access(place, os.R_OK | os.W_OK):
            command = f"chmod u+rwX {shlex.quote(str(place))}"
            return Finding(PROBLEM, "folder", f"{place} cannot be read and written", command)
    return Finding(OK, "folder", f"{folder} can be written")


def _contents(check: str, location: Location) -> Iterator[Finding]:
    """Check the schema, integrity and approval of a database; raises what opening it raises."""
    from ..errors import ApprovalError
    from ..storage.describe import describe
    from ..storage.store import Store
    from ..system import text

    description = describe(location.url)
    where = f"{description.location} ({location.origin})"
    if description.advice is not None:
        yield Finding.from_error(check, f"{where}: {description.state}; {description.advice}")
        return
    size = "" if description.size is None else f", {text.size(description.size)}"
    yield Finding(OK, check, f"{where}: schema {description.revision}{size}")
    yield _integrity(location, description.size)
    with Store(location.url, create=False, read_only=True) as store:
        try:
            store.require_approved()
        except ApprovalError as error:
            yield Finding.from_error("approval", error, WARNING)


def _integrity(location: Location, size: int | None) -> Finding:
    """Run the quick check of a database; a file has a size, a server has none."""
    from ..errors import StorageError
    from ..maintenance.check import quick_check
    from ..storage.engine import parse_url, shell_word
    from ..system import text

    verb = "upgrade" if size is None else "check"
    mend = f"tunedb db {verb} --db {shell_word(parse_url(location.url))}"
    if (size or 0) > _LARGE_FILE:
        return Finding(WARNING, "integrity", f"{text.size(size)} take a while to check", mend)
    try:
        problems = quick_check(location.url)
    except StorageError as error:  # SQLite gives up on some damages
        problems = [str(error)]
    if not problems:
        return Finding(OK, "integrity", "quick check passed")
    more = f" and {len(problems) - 1} more" if problems[1:] else ""
    return Finding(PROBLEM, "integrity", problems[0] + more, mend)


def _server() -> Iterator[Finding]:
    """Check the team's server, if one is set."""
    from ..errors import ApprovalError, TuneDBError, UsageError
    from ..storage.config import locate_server

    try:
        location = locate_server()
    except ApprovalError as error:
        yield Finding.from_error("server", error, WARNING)
        return
    except UsageError:
        return  # none is set, or the database's line has the reason
    except TuneDBError as error:
        yield Finding.from_error("server", error)
        return
    try:
        yield from _contents("server", location)
    except TuneDBError as error:
        yield Finding.from_error("server", error)


def _prior() -> Iterator[Finding]:
    """Verify the prior, if there is one."""
    from ..errors import TuneDBError
    from ..exchange.prior import IN_WHEEL, prior_path, read_card
    from ..system import text

    path = prior_path("auto")
    if path is None:
        return
    try:
        card = read_card(path)
    except TuneDBError as error:
        is_own = path == IN_WHEEL
        mend = "pip install --force-reinstall tunedb" if is_own else "export TUNEDB_PRIOR=none"
        yield Finding(PROBLEM, "prior", str(error), mend)
        return
    records = text.count(card["records"], "record")
    workloads = text.count(card["workloads"], "workload")
    yield Finding(OK, "prior", f"{path}: {records} of {workloads}, digest verified")


def _space(folder: Path) -> Finding:
    from ..system import text

    free = shutil.disk_usage(folder).free
    status = PROBLEM if free < _FULL else WARNING if free < _SCARCE else OK
    return Finding(status, "disk", f"{text.size(free)} free in {folder}")

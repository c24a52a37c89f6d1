"""Page about a database: what it holds, networks, tasks, failures, models, machines, launches."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .. import __version__
from ..system import text
from . import advisor
from .charts import Axis, Mark, chart, zoomable
from .contents import Contents
from .models import models_section
from .networks import networks_section
from .page import Cell, Key, Plot, Section, Table, colour, render, seconds, share
from .svg import visible
from .tasks import comparison_section, in_unit, tasks_section

if TYPE_CHECKING:
    from ..storage.store import Store

#: Messages of failures, and sessions of a plot.
_MESSAGES, _SESSIONS = 12, 20


@dataclass(frozen=True, slots=True)
class Running:
    """A tuning run that goes on.

    Parameters
    ----------
    states : sequence of str
        What it came to, in words.
    courses : mapping of str to sequence of (float, float)
        Name of each network or task → minutes since the start of the run, and its latency or best
        time in seconds.
    """

    states: Sequence[str]
    courses: Mapping[str, Sequence[tuple[float, float]]]


def write(
    contents: Contents,
    name: str,
    *,
    running: Running | None = None,
    against: tuple[Store, str] | None = None,
    reload_after: int | None = None,
    on_section: Callable[[str], object] = lambda title: None,
) -> str:
    """Return the page about a database as self-contained HTML.

    Equal contents give equal pages.

    Parameters
    ----------
    contents : Contents
        What :func:`.contents.read` read.
    name : str
        Name of the database.
    running : Running, optional
        A run that goes on.
    against : (Store, str), optional
        Another database to compare with, and its name.
    reload_after : int, optional
        Seconds after which the page loads itself again, while a run goes on.
    on_section : callable
        Called with the title of each section before it is made.

    Raises
    ------
    PluginError
        Jinja is not installed.
    """
    makers: dict[str, Callable[[], Section]] = {
        "Overview": lambda: _overview(contents),
        "Networks": lambda: networks_section(contents),
        "Tasks": lambda: tasks_section(contents),
        "Failures": lambda: _failures(contents),
        "Models": lambda: models_section(contents),
        "Machines": lambda: _machines(contents),
    }
    if against is not None:
        makers["Comparison"] = lambda: comparison_section(contents, *against)
    if contents.counts.launches:
        makers["Launches"] = lambda: _launches(contents)
    sections = [] if running is None else [_running(running)]
    for title, make in makers.items():
        on_section(title)
        sections.append(make())
    counts = contents.counts
    lead = (
        f"{text.count(counts.measurements, 'record')} of {text.count(counts.workloads, 'workload')}"
        f" on {text.count(counts.targets, 'target')}, from {text.count(counts.sources, 'source')}."
    )
    if not contents.is_whole:
        lead += f" This page is about {text.count(len(contents.tasks), 'chosen task')}."
    footer = f"Equal databases give equal pages. Written by tunedb {__version__}: tunedb report."
    return render(f"Tuning database {name}", lead, sections, footer, reload_after=reload_after)


def _running(running: Running) -> Section:
    """Return the section about a run that goes on."""
    title, states = "This run", tuple(running.states)
    points = [point for course in running.courses.values() for point in course]
    if len(points) < 2:
        return Section(title, states)
    minutes, times = (np.array(each) for each in zip(*points, strict=True))
    size, unit = in_unit(times)
    axes = (
        Axis.from_zero("minutes since the start", minutes),
        Axis.around(f"time ({unit})", times / size, logarithmic=True),
    )
    marks, keys = [], []
    for index, (name, course) in enumerate(running.courses.items()):
        x, y = [at for at, _ in course], [time / size for _, time in course]
        marks.append(Mark("step", x, y, colour=colour(index), name=visible(name, 40)))
        keys.append(Key(visible(name, 40), colour(index)))
    name = "Time over the run"
    caption = "Estimated latency of each network, or best time of each task without a network."
    svg = chart("running", name, caption, axes, marks)
    rows = [
        (visible(each, 40), float(at), seconds(float(time)))
        for each, course in running.courses.items()
        for at, time in course
    ]
    table, zoom = Table(("name", "minutes", "time"), rows), zoomable(axes, marks)
    plot = Plot(name, caption, svg, table, keys=tuple(keys), zoom=zoom)
    return Section(title, states, plots=([plot],))


# ---- Overview ------------------------------------------------------------------------------------


def _overview(contents: Contents) -> Section:
    counts = contents.counts
    rows = [
        (
            *(visible(source.name, 60), source.kind.value, source.trust.name.lower()),
            *(source.records, source.served, source.retracted),
            (text.moment(source.created_at) or text.NOTHING)[:10],
        )
        for source in contents.sources
    ]
    columns = ("source", "kind", "trust", "records", "served", "retracted", "since")
    foreign = sum(s.records for s in contents.sources if s.trust.name == "FOREIGN")
    paragraphs = [
        f"{counts.programs:,} programs; {counts.failed:,} records failed, {counts.retracted:,} are "
        f"retracted; {text.count(counts.sessions, 'session')}; "
        f"{text.count(counts.launches, 'launch')} of GPU kernels; "
        f"{text.count(counts.quarantined, 'unreadable line')} in quarantine."
    ]
    if foreign:
        paragraphs.append(
            f"{text.count(foreign, 'record')} of foreign sources: nobody here vouches for them. "
            "They are never served, and this page marks them: tunedb trust changes that."
        )
    days = _days(contents)
    return Section(
        "Overview",
        tuple(paragraphs),
        plots=([days],) if days else (),
        tables={"Sources": Table(columns, rows, more="tunedb sources")},
    )


def _days(contents: Contents) -> Plot | None:
    """Draw the number of records of each day with records; None for fewer than two days."""
    trials = contents.trials
    at = trials.measured_at[np.isfinite(trials.measured_at)].astype("datetime64[s]")
    if len(_counted(at, "day")[0]) < 2:
        return None
    word = next(w for w in ("day", "month", "year") if len(_counted(at, w)[0]) <= 24 or w == "year")
    days, numbers = _counted(at, word)
    names = [str(day)[2:] if len(days) > 12 else str(day) for day in days]
    title = f"Records of each {word}"
    caption = (
        f"Days, months or years without records are left out; times are UTC. {len(at):,} records."
    )
    axes = Axis.from_zero("records", numbers), Axis.named(word, names)
    texts = [f"{name}: {count:,}" for name, count in zip(names, numbers.tolist(), strict=True)]
    marks = [Mark("bars", numbers.astype(float), range(len(days)), texts=texts)]
    svg = chart("days", title, caption, axes, marks)
    rows = list(zip(map(str, days), numbers.tolist(), strict=True))
    return Plot(title, caption, svg, Table((word, "records"), rows))


def _counted(at: npt.NDArray[np.datetime64], word: str) -> tuple[npt.NDArray[Any], ...]:
    """Return days, months or years with records, and their numbers of records."""
    return np.unique(at.astype(f"datetime64[{word[0].upper()}]"), return_counts=True)


# ---- Failures ------------------------------------------------------------------------------------


def _failures(contents: Contents) -> Section:
    failures = contents.failures
    if not failures:
        return Section("Failures", notes=("No record failed.",))
    machines = {
        row["session_id"]: row["gpu"] or row["cpu"] or "unknown" for row in contents.sessions
    }
    counted: dict[str, Counter[str]] = defaultdict(Counter)
    for row in failures:
        counted[row["kind"]][row["phase"]] += 1
    kinds = sorted(counted, key=lambda kind: -counted[kind].total())
    phases = sorted({row["phase"] for row in failures})
    title = "Failures by cause and phase"
    caption = f"{text.count(len(failures), 'failed record')} of the chosen tasks."
    ends = np.cumsum([[counted[kind][phase] for kind in kinds] for phase in phases], axis=0)
    axes = Axis.from_zero("records", ends[-1]), Axis.named("cause", kinds)
    marks = [
        Mark("bars", end.astype(float), range(len(kinds)), start.astype(float), colour(i))
        for i, (start, end) in enumerate(zip([0 * ends[0], *ends], ends, strict=False))
    ]
    svg = chart("failures", title, caption, axes, marks)
    keys = tuple(Key(phase, colour(i)) for i, phase in enumerate(phases))
    rows: list[tuple[Cell, ...]] = [
        (kind, *(counted[kind][phase] for phase in phases)) for kind in kinds
    ]
    plot = Plot(title, caption, svg, Table(("cause", *phases), rows), keys=keys)
    trials = {
        name: Counter(machines.get(id_, "unknown") for id_ in ids.tolist())
        for name, ids in (
            ("all", contents.trials.session_id),
            ("failed", contents.trials.session_id[contents.trials.status == "failed"]),
        )
    }
    by_machine = [
        (
            visible(machine, 60),
            count,
            trials["failed"][machine],
            share(trials["failed"][machine] / count),
        )
        for machine, count in trials["all"].most_common()
    ]
    messages = Counter(
        (row["kind"], visible(" ".join((row["message"] or "").split()), 160), row["trust"])
        for row in failures
    )
    frequent: list[tuple[Cell, ...]] = [(count, *what) for what, count in messages.most_common()]
    heads = ("records", "cause", "message", "trust")
    tables = {
        "By machine": Table(("machine", "records", "failed", "share"), by_machine),
        "Messages": Table(heads, frequent, most=_MESSAGES, more="tunedb export --table failures"),
    }
    return Section("Failures", plots=([plot],), tables=tables)


# ---- Machines and sessions -----------------------------------------------------------------------


def _machines(contents: Contents) -> Section:
    if not contents.sessions:
        note = "No session: records of logs do not say where they were measured."
        return Section("Machines and sessions", notes=(note,))
    trials, rows, noise = contents.trials, [], []
    factors = {
        (target, factor.subject_id): factor
        for target in {task["target_id"] for task in contents.tasks}
        for factor in contents.store.runs.factors(target)
        if factor.subject == "session"
    }
    for row in contents.sessions:
        id_ = row["session_id"]
        own = trials.spread[trials.session_id == id_]
        own = own[np.isfinite(own)] - 1
        middle = float(np.median(own)) if len(own) else None
        if len(own) > 1:
            noise.append((f"session {id_}", *(100 * np.quantile(own, (0.1, 0.5, 0.9)))))
        found = [f"{each.factor:.3f}" for (_, subject), each in factors.items() if subject == id_]
        rows.append(
            (
                *(id_, str(row["started_at"] or "")[:16]),
                visible(row["gpu"] or row["cpu"] or "", 50),
                *(row["cores"], row["threads"], row["tvm_version"], row["records"], row["failed"]),
                *(row["foreign_records"], share(middle), ", ".join(found) or None),
            )
        )
    columns = (
        *("session", "started (UTC)", "machine", "cores", "threads", "TVM", "records", "failed"),
        *("foreign", "noise", "factor"),
    )
    note = (
        "Noise: the median over the records by how much the slowest repeat is above the fastest. "
        "Factor: the slow-down against the first session of the machine, from common programs "
        "(tunedb sessions)."
    )
    table = Table(columns, rows[::-1], more="tunedb sessions")
    plots = ([_noise_plot(noise[-_SESSIONS:])],) if noise else ()
    return Section("Machines and sessions", notes=(note,), plots=plots, tables={"Sessions": table})


def _noise_plot(noise: list[tuple[str, float, float, float]]) -> Plot:
    names, low, middle, high = map(list, zip(*noise, strict=True))
    title = "Noise of sessions"
    caption = (
        "Slowest above fastest repeat: the median of the records, and the 10th to 90th percentile."
    )
    axes = Axis.from_zero("slowest above fastest repeat (%)", high), Axis.named("session", names)
    places = range(len(names))
    marks = [Mark("intervals", high, places, low), Mark("points", middle, places)]
    svg = chart("noise", title, caption, axes, marks)
    rows: list[tuple[Cell, ...]] = [
        (name, *(share(value / 100) for value in values)) for name, *values in noise
    ]
    return Plot(title, caption, svg, Table(("session", "10 %", "median", "90 %"), rows))


# ---- Launches of GPU kernels ---------------------------------------------------------------------


def _launches(contents: Contents) -> Section:
    """Return the section about thread-block sizes: the advisor's, without its evaluation."""
    title = "Thread-block sizes"
    parts = advisor.sections_of(contents.store)
    if not parts:
        return Section(title, notes=("No launch has a run time.",))
    note = "tunedb report advisor writes more, with the advice and its evaluation."
    return Section(title, notes=(note,), parts=tuple(parts))

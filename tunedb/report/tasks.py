"""Sections about tasks: all of them, one after the other, and against another database."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import orjson

from ..errors import FormatError
from ..programs import TOOL_NAMES, steps_of, tool_of
from ..programs.step_text import before_postproc, decisions_of, line_of
from ..results import Record
from ..search.forecast import forecast, similar_curves
from ..search.lineage import LineageStep, lineage_of
from ..system import text
from ..system.one_line import tensors
from .charts import Axis, Box, Mark, chart, heat_map, tree, zoomable
from .contents import Contents, Row, Trials
from .page import Cell, Key, Plot, Section, Shown, Table, operations, seconds, share
from .svg import Floats, visible

if TYPE_CHECKING:
    from ..storage.store import Store

#: Tasks that have a part of their own, points of a plot, programs side by side, values of a
#: decision, columns of decisions, and bytes of a script: what a page shows at most.
_TASKS, _POINTS, _PROGRAMS, _VALUES, _COLUMNS, _SCRIPT = 8, 1_200, 3, 12, 24, 12_000

#: Records whose decisions the heat map reads.
_DECISIONS = 800

#: Units of times of plots.
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))


def tasks_section(contents: Contents) -> Section:
    """Return the section about all tasks, with a part for each that costs most."""
    title = "Tasks"
    if not contents.tasks:
        note = "No task yet. Tune a module: tunedb tune; or import logs: tunedb import logs PATH."
        return Section(title, notes=(note,))
    ordered = sorted(contents.tasks, key=lambda task: -_cost(contents, task))
    in_networks = "calls in the networks, times the best time" if contents.calls else "best time"
    table = Table(
        (
            *("task", "name", "target", "weight", "best", "weight * best", "share", "FLOP/s"),
            *("trials", "failed", "cut short", "foreign", "state"),
        ),
        _task_rows(contents, ordered),
        more="tunedb top",
    )
    shown = [task for task in ordered if task["best_seconds"] is not None][:_TASKS]
    lead = f"{text.count(len(ordered), 'task')}, ordered by {in_networks}."
    notes = [
        "A task has settled if it found its best program in the first half of its trials. Records "
        "of foreign sources are never served, and count in no time of this table."
    ]
    if len(shown) < len(ordered):
        notes.append(f"The first {len(shown)} tasks with a program that works have their own part.")
    parts = tuple(_task_part(contents, task, index) for index, task in enumerate(shown))
    return Section(title, (lead,), tuple(notes), tables={"All tasks": table}, parts=parts)


def task_name(task: Row, chars: int = 70) -> str:
    """Return the name of a task, with its arguments where the name says little."""
    try:
        arguments = tensors(json.loads(task["arguments"] or "[]"))
    except (TypeError, ValueError):
        arguments = ""
    family = task["family"] if task["family"] not in (None, task["workload"]) else ""
    return visible(" ".join(part for part in (task["workload"], family, arguments) if part), chars)


def _cost(contents: Contents, task: Row) -> float:
    return contents.weight(task) * (task["best_seconds"] or 0.0)


def _task_rows(contents: Contents, tasks: Sequence[Row]) -> list[tuple[Cell, ...]]:
    total = sum(_cost(contents, task) for task in tasks)
    trials = contents.trials
    keys = trials.workload_id << 32 | trials.target_id
    order = np.argsort(keys, kind="stable")
    unique, starts = np.unique(keys[order], return_index=True)
    groups = dict(zip(unique.tolist(), np.split(order, starts[1:]), strict=True))
    rows: list[tuple[Cell, ...]] = []
    for task in tasks:
        own = trials.where(groups[task["workload_id"] << 32 | task["target_id"]]).in_time()
        cost = _cost(contents, task)
        rows.append(
            (
                *(task["workload_id"], task_name(task), visible(task["target"], 40)),
                contents.weight(task),
                *(seconds(task["best_seconds"]), seconds(cost or None)),
                share(cost / total if total > 0 and cost else None),
                operations(task["best_gflops"] and task["best_gflops"] * 1e9),
                *(task["records"], task["failed"], int((own.status == "cut_short").sum())),
                *(task["foreign_records"], _state(own)),
            )
        )
    return rows


def _state(trials: Trials) -> str:
    """Say whether the search of a task has settled."""
    valid = np.where(trials.served, trials.seconds, np.inf)
    if not np.isfinite(valid).any():
        return "no program yet"
    at = int(np.argmin(valid)) + 1
    return f"settled at trial {at}" if len(trials) >= 2 * at else "improving"


# ---- One task ------------------------------------------------------------------------------------


def _task_part(contents: Contents, task: Row, index: int) -> Section:
    store, key = contents.store, f"task{index}"
    trials = contents.trials.of(task).in_time()
    ids = [task["workload_id"]], [task["target_id"]]
    best = store.records.top_k(*ids, _PROGRAMS)
    plots = [_over_trials(trials, f"{key}-trials"), _over_time(trials, f"{key}-time")]
    wide = [_decision_map(store, task, key), _lineage(store, contents.trials, best, key)]
    notes = [_expectation(store, task, len(trials))]
    foreign = int((trials.trust == "foreign").sum())
    if foreign:
        notes.append(f"{text.count(foreign, 'record')} of foreign sources: in no plot.")
    script = best[0].measurement.program.workload.script if best else None
    texts = {f"Steps of record {record.id}": _steps(record) for record in best}
    if script:
        texts["Script of the workload"] = _shortened(script)
    differences = _differences(best)
    return Section(
        f"Task {task['workload_id']}: {task_name(task)} on {visible(task['target'], 40)}",
        notes=tuple(note for note in notes if note),
        plots=([plot for plot in plots if plot], [plot for plot in wide if plot]),
        tables={"Best programs": _programs(best)}
        | ({"Decisions that differ": differences} if differences else {}),
        texts=texts,
    )


def in_unit(values: Floats | Sequence[float]) -> tuple[float, str]:
    """Return the unit in which the least of some times is readable, and its seconds."""
    finite = [value for value in values if 0 < value < math.inf]
    least = min(finite, default=1.0)
    return next((unit for unit in _UNITS if least >= unit[0]), _UNITS[-1])


def _thinned(places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return at most so many places, evenly chosen."""
    chosen = np.linspace(0, len(places) - 1, min(len(places), _POINTS)).astype(int)
    return np.take(places, chosen)


def _course(trials: Trials, x: Floats) -> tuple[Floats, Floats]:
    """Return where the best time improved, and the best times; the last place is the end."""
    best = np.minimum.accumulate(np.where(trials.served, trials.seconds, np.inf))
    improved = np.flatnonzero(best < np.append(np.inf, best[:-1]))
    places = np.append(improved, len(best) - 1)
    return x[places], best[places]


def _over_trials(trials: Trials, key: str) -> Plot:
    """Draw all times and the best so far over the trials."""
    numbers = np.arange(1, len(trials) + 1, dtype=float)
    local = trials.trust != "foreign"
    x, best = _course(trials, numbers)
    size, unit = in_unit(best)
    timed = _thinned(np.flatnonzero(local & np.isfinite(trials.seconds)))
    failed = _thinned(np.flatnonzero(local & (trials.status == "failed")))
    times = trials.seconds[timed] / size
    top = float(np.max(times, initial=best[-1] / size)) * 1.3
    marks = [
        Mark("dots", numbers[timed], times, colour="other", name="time of a trial"),
        Mark("dots", numbers[failed], [top] * len(failed), colour="c1", name="failed"),
        Mark("step", x, best / size, name="best so far"),
    ]
    counts = [(name, int((trials.status == name).sum())) for name in np.unique(trials.status)]
    caption = (
        f"{text.count(len(trials), 'trial')}: {', '.join(f'{n:,} {name}' for name, n in counts)}. "
        f"The fastest took {text.seconds(float(best[-1]))}; it was trial {x[-2]:.0f}. "
        "Failures are drawn at the top."
    )
    axes = (
        Axis("trial", 0, len(trials) + 1),
        Axis.around(f"time ({unit})", best / size, [top], times, logarithmic=True),
    )
    table = Table(
        ("trial", "best so far"), list(zip(x.astype(int).tolist(), map(seconds, best), strict=True))
    )
    keys = (Key("best so far", "c0"), Key("time of a trial", "other"), Key("failed", "c1"))
    return _plot(key, "Best so far over trials", caption, axes, marks, table, keys)


def _over_time(trials: Trials, key: str) -> Plot | None:
    """Draw the best so far over the time since the first trial; None if times are unknown."""
    at = trials.measured_at
    if np.isnan(at).any() or len(at) < 2 or at.max() <= at.min():
        return None
    x, best = _course(trials, (at - at.min()) / 60)
    size, unit = in_unit(best)
    caption = (
        f"From the first to the last trial passed {text.span(float(at.max() - at.min()))}, pauses "
        "between runs included."
    )
    axes = (
        Axis.from_zero("minutes since the first trial", x),
        Axis.around(f"best so far ({unit})", best / size, logarithmic=True),
    )
    marks = [Mark("step", x, best / size, name="best so far")]
    rows = [(float(a), seconds(b)) for a, b in zip(x, best, strict=True)]
    table = Table(("minutes", "best so far"), rows)
    return _plot(key, "Best so far over time", caption, axes, marks, table)


def _plot(
    key: str,
    title: str,
    caption: str,
    axes: tuple[Axis, Axis],
    marks: list[Mark],
    table: Table,
    keys: tuple[Key, ...] = (),
) -> Plot:
    svg = chart(key, title, caption, axes, marks)
    return Plot(title, caption, svg, table, keys=keys, zoom=zoomable(axes, marks))


def _expectation(store: Store, task: Row, trials: int) -> str:
    """Say what similar searches make expect of more trials."""
    target = store.targets.get(task["target_id"])
    curves = similar_curves(store, task["workload_id"], target)
    found = forecast(curves, trials=trials, best_seconds=task["best_seconds"])
    if found is None:
        return ""
    bound = "at least " if found.is_bound else ""
    expected = f", and end at {text.seconds(found.best_seconds)}" if found.best_seconds else ""
    return (
        f"Forecast from {text.count(found.curves, 'similar search')}: 95 % of the best speed after "
        f"{bound}{found.trials:,} trials (10 % of searches: {found.earliest:,}, 90 %: "
        f"{found.latest:,}){expected}."
    )


# ---- Programs of a task --------------------------------------------------------------------------


def _programs(records: Sequence[Record]) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for record in records:
        measurement, source = record.measurement, record.source
        repeats = measurement.run_secs or ()
        rows.append(
            (
                *(record.id, seconds(record.mean), seconds(min(repeats, default=None))),
                *(len(repeats), visible(source.name, 40), source.trust.name.lower()),
                measurement.origin.value,
            )
        )
    columns = ("record", "mean", "fastest repeat", "repeats", "source", "trust", "origin")
    return Table(columns, rows)


def _decisions(record: Record) -> list[tuple[str, str]]:
    """Return the name and value of each decision of a program."""
    program = record.measurement.program
    try:
        tool, steps = tool_of(program.workload.format), steps_of(program)
    except FormatError:  # damaged, or of a newer tunedb
        return []
    return [
        (f"step {step.number}: {step.name}", json.dumps(value))
        for step in steps
        for value in decisions_of(tool, [step])
    ]


def _differences(records: Sequence[Record]) -> Table | None:
    """Return the decisions that differ between programs; None without any."""
    if len(records) < 2:
        return None
    columns = [_decisions(record) for record in records]
    rows: list[tuple[Cell, ...]] = []
    for number in range(max(map(len, columns), default=0)):
        cells = [
            column[number] if number < len(column) else ("", text.NOTHING) for column in columns
        ]
        if len({value for _, value in cells}) > 1:
            rows.append((cells[0][0] or cells[-1][0], *(visible(value, 60) for _, value in cells)))
    names = ("decision", *(f"record {record.id}" for record in records))
    return Table(names, rows) if rows else None


def _steps(record: Record) -> str:
    try:
        steps = steps_of(record.measurement.program)
    except FormatError as error:
        return str(error)
    return _shortened("\n".join(line_of(step) for step in steps[: before_postproc(steps)]))


def _shortened(long: str) -> str:
    return long if len(long) <= _SCRIPT else f"{long[:_SCRIPT]}\n… (tunedb show has all of it)"


def _decision_map(store: Store, task: Row, key: str) -> Plot | None:
    """Draw the speed of programs by each factor of their tiles; None without tiles that vary."""
    columns = store.table("records", [task["workload_id"]], [task["target_id"]]).to_pydict(
        "decisions", "mean_seconds", "served"
    )
    pool = [
        (decisions, time)
        for decisions, time, served in zip(*columns.values(), strict=True)
        if served and time
    ]
    pool = pool[:: max(1, len(pool) // _DECISIONS)]
    workload = store.workloads.get(task["workload_id"])
    is_numbered = TOOL_NAMES.get(workload.format) == "metaschedule"
    times: dict[tuple[int, int], dict[int, list[float]]] = {}
    for decisions, time in pool:
        for count, decision in enumerate(decisions or (), 1):
            number, factors = _factors(decision, count, is_numbered=is_numbered)
            for place, factor in enumerate(factors, 1):
                times.setdefault((number, place), {}).setdefault(factor, []).append(time)
    varied = {place: found for place, found in times.items() if len(found) > 1}
    chosen = sorted(varied, key=lambda place: -_influence(varied[place]))[:_COLUMNS]
    values = sorted({value for place in chosen for value in varied[place]})
    if not chosen or len(pool) < 8:
        return None
    counts = {v: sum(len(varied[place].get(v, ())) for place in chosen) for v in values}
    values = sorted(sorted(values, key=lambda value: -counts[value])[:_VALUES])
    chosen.sort()
    fastest = min(time for _, time in pool)
    medians = [[np.median(varied[p].get(v, [np.nan])) for p in chosen] for v in values]
    speeds = fastest / np.array(medians)
    title = "Tile decisions and speed"
    caption = (
        f"Each square: median speed of the programs with a factor (row) at a place of a tile "
        f"(column: {'step' if is_numbered else 'decision'}.place), relative to the fastest of "
        f"{len(pool):,} programs; dark is fast. A cross marks a factor that no program has there."
    )
    heads = [f"{number}.{place}" for number, place in chosen]
    names = ([str(value) for value in values], heads)
    svg = heat_map(f"{key}-tiles", title, caption, names, speeds, titles=("factor", "decision"))
    rows = [(value, *map(float, row)) for value, row in zip(values, speeds, strict=True)]
    return Plot(title, caption, svg, Table(("factor", *heads), rows), wide=True, scrolls=True)


def _factors(decision: str, number: int, *, is_numbered: bool) -> tuple[int, list[int]]:
    """Return the number of a decision, and its factors if it is one of a tile.

    A decision of MetaSchedule has the number of its instruction; others count from 1, and each
    factor of auto_scheduler is a decision of its own.
    """
    value: Any = orjson.loads(decision)
    if is_numbered and isinstance(value, list) and len(value) == 2:
        number, value = value
    elif type(value) is int:
        return number, [value]
    is_tile = isinstance(value, list) and all(type(factor) is int for factor in value)
    return number, value if is_tile else []


def _influence(found: dict[int, list[float]]) -> float:
    """Return how much the medians of a place's factors differ."""
    logs = [math.log(np.median(times)) for times in found.values()]
    return max(logs) - min(logs)


def _lineage(store: Store, trials: Trials, best: Sequence[Record], key: str) -> Plot | None:
    """Draw the programs from which the best one was made; None if its origin is unknown."""
    steps = lineage_of(store, best[0]) if best else []
    if not steps or (len(steps) == 1 and steps[0].origin in ("unknown", "random")):
        return None
    times = dict(zip(trials.record_id.tolist(), trials.seconds.tolist(), strict=True))
    title = "Lineage of the best program"
    caption = "The best program is at the left, the program from which it was made at its right."
    root = _ancestors(steps, times)
    svg = tree(f"{key}-lineage", title, caption, root)
    rows = [(path, *box.lines) for path, box in root.paths()]
    table = Table(("box", "program", "origin"), [(*row, "")[:3] for row in rows])
    return Plot(title, caption, svg, table, wide=True, scrolls=True)


def _ancestors(steps: Sequence[LineageStep], times: dict[int, float]) -> Box:
    """Return the program of the first step with those from which it was made."""

    def program(record: int | None, digest: str) -> str:
        if record is None:
            return f"program {digest[:8]}"
        time = text.seconds(times.get(record))
        return f"record {record}" + ("" if time == text.NOTHING else f", {time}")

    step = steps[0]
    children = []
    if len(steps) > 1:
        children.append(_ancestors(steps[1:], times))
    elif step.donor is not None:
        children.append(Box((program(step.donor.record, step.donor.digest), "")))
    if step.other is not None:
        children.append(Box((program(step.other.record, step.other.digest), "")))
    operators = f": {', '.join(step.operators)}" if step.operators else ""
    return Box((program(step.record, ""), f"{step.origin}{operators}"), children=tuple(children))


# ---- Against another database --------------------------------------------------------------------


def comparison_section(contents: Contents, other: Store, name: str) -> Section:
    """Return the section that compares the best times with those of another database.

    Parameters
    ----------
    contents : Contents
        This database.
    other : Store
        The other database.
    name : str
        Its name.
    """
    columns = other.table("tasks").to_pydict("workload_id", "target_id", "best_seconds")
    theirs = {(w, t): best for w, t, best in zip(*columns.values(), strict=True)}
    store, rows, ratios, seen = contents.store, [], [], set()
    for task in contents.tasks:
        pair = (
            other.workloads.id_of(store.workloads.get(task["workload_id"]).digest),
            other.targets.id_of(store.targets.get(task["target_id"]).digest),
        )
        ours, best = task["best_seconds"], theirs.get(pair) if None not in pair else None
        seen.add(pair)
        ratio = ours / best if ours and best else None
        ratios.append(ratio)
        verdict = "new" if best is None else "faster" if ratio and ratio < 1 else "slower"
        if ratio is not None and abs(ratio - 1) < 0.01:
            verdict = "equal within 1 %"
        if ours is not None or best is not None:
            rows.append(
                (
                    task["workload_id"],
                    task_name(task),
                    visible(task["target"], 40),
                    seconds(ours),
                    seconds(best),
                    Shown(ratio, f"{ratio:.3f}" if ratio else text.NOTHING),
                    verdict,
                )
            )
    rows.sort(key=lambda row: row[5].value or math.inf)
    found = np.array([ratio for ratio in ratios if ratio], float)
    title = f"Against {visible(name, 60)}"
    if not rows:
        return Section(title, notes=("Neither database has a program that works.",))
    missing = len([key for key, best in theirs.items() if best and key not in seen])
    lead = (
        f"{text.count(len(found), 'common task')}: {int((found < 0.99).sum()):,} faster here, "
        f"{int((found > 1.01).sum()):,} slower, the rest equal within 1 %"
        + (
            f"; geometric mean of the ratios {math.exp(np.log(found).mean()):.3f}"
            if len(found)
            else ""
        )
        + f". {len(rows) - len(found):,} only here, {missing:,} only there."
    )
    heads = ("task", "name", "target", "here", "there", "here / there", "verdict")
    note = "Times of other machines are comparable only as far as the machines are."
    return Section(title, (lead,), (note,), tables={"Tasks": Table(heads, rows)})

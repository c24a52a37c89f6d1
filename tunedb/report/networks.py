"""Section about networks: latency over time, operators, and the limits of the machine."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

import numpy as np

from ..records import Session, Target
from ..storage.network_runs import NetworkRun
from ..system import text
from ..system.host import fingerprint_of
from ..system.roofline import Roofline
from .charts import Axis, Mark, chart, zoomable
from .contents import Contents, workload_of
from .page import Cell, Key, Plot, Section, Table, operations, seconds, share
from .svg import visible
from .tasks import in_unit

#: Operators of a plot; the others are drawn as one.
_OPERATORS = 16


def networks_section(contents: Contents) -> Section:
    """Return the section about networks, with a part for each."""
    if not contents.networks:
        note = "No network was tuned. Tune one: tunedb tune network.onnx"
        return Section("Networks", notes=(note,))
    rows = [
        (
            *(run.name, _target(run), run.threads),
            *(seconds(run.untuned), seconds(run.latency), run.untuned / run.latency),
            *(seconds(run.sum_of_operators), seconds(run.runtime)),
            "yes" if run.is_accurate else f"no: {run.deviation:.1e}",
        )
        for _, run in contents.networks
    ]
    columns = (
        *("network", "target", "threads", "untuned", "tuned", "speed-up"),
        *("sum of operators", "calls and allocations", "outputs equal"),
    )
    parts = tuple(
        _network_part(contents, session, run, index)
        for index, (session, run) in enumerate(contents.networks)
    )
    note = "The last tuning run of each network; both latencies are measured with equal inputs."
    return Section("Networks", notes=(note,), tables={"Latency": Table(columns, rows)}, parts=parts)


def _network_part(contents: Contents, session: Session, run: NetworkRun, index: int) -> Section:
    rows: list[tuple[Cell, ...]] = [
        (
            *(visible(each.name, 50), each.calls, seconds(each.untuned), seconds(each.seconds)),
            share(each.seconds / run.latency),
            operations(each.rate),
            share(each.limit_share(run.roofline)),
        )
        for each in run.operators
    ]
    columns = ("operator", "calls", "untuned", "tuned", "share", "FLOP/s", "of the limit")
    plots = [
        _latency_plot(contents, session, run, index),
        _operators_plot(run, index),
        _roofline_plot(run, run.roofline, index) if run.roofline else None,
    ]
    notes = []
    if run.slower:
        slower = text.count(len(run.slower), "operator")
        notes.append(f"{slower} slower than untuned: give the run more --trials or --minutes.")
    return Section(
        f"{visible(run.name, 60)} on {_target(run)}",
        notes=tuple(notes),
        plots=([plot for plot in plots if plot],),
        tables={"Operators": Table(columns, rows)},
    )


def _target(run: NetworkRun) -> str:
    """Return the target of a run for people."""
    try:
        return visible(Target.from_config(json.loads(run.target)).label, 40)
    except (AttributeError, ValueError):
        return visible(run.target, 40)


def _latency_plot(contents: Contents, session: Session, run: NetworkRun, index: int) -> Plot | None:
    """Draw the latency that the operators' best times give, over the time of the run."""
    points = list(_latencies(contents, session, run))
    if len(points) < 2:
        return None
    minutes, latency = (np.array(each) for each in zip(*points, strict=True))
    size, unit = in_unit(latency)
    title = "Latency over time"
    caption = (
        "Sum of the operators with the best program that each had at a time, never above its "
        "untuned time; the dashed lines are the measured latencies before and after."
    )
    ends = [0.0, float(minutes[-1])]
    axes = (
        Axis.from_zero("minutes since the start", minutes),
        Axis.around(
            f"latency ({unit})",
            latency / size,
            [run.untuned / size, run.latency / size],
            logarithmic=True,
        ),
    )
    marks = [
        Mark("reference", ends, [run.untuned / size] * 2, colour="other", name="untuned"),
        Mark("reference", ends, [run.latency / size] * 2, colour="other", name="tuned"),
        Mark("step", minutes, latency / size, name="estimated latency"),
    ]
    rows = [(float(a), seconds(float(b))) for a, b in points]
    svg = chart(f"network{index}-time", title, caption, axes, marks)
    table = Table(("minutes", "latency"), rows)
    return Plot(title, caption, svg, table, zoom=zoomable(axes, marks))


def _latencies(
    contents: Contents, session: Session, run: NetworkRun
) -> Iterator[tuple[float, float]]:
    """Yield minutes since the start of a run, and the network's latency by its operators."""
    store = contents.store
    sessions = {row["session"]: row for row in contents.sessions}
    run_key = fingerprint_of(session).get("run", {}).get("key")
    keys = [s.key for _, s in store.runs.sessions_of_run(str(run_key))] if run_key else []
    rows = [sessions[each] for each in dict.fromkeys([*keys, session.key]) if each in sessions]
    times: dict[int | None, float] = {}
    calls: dict[int | None, int] = {}
    for operator in run.operators:
        if operator.workload is not None:
            id_ = workload_of(store, operator)
            times[id_] = times.get(id_, 0.0) + operator.untuned
            calls[id_] = calls.get(id_, 0) + operator.calls
    trials = contents.trials
    chosen = np.isin(trials.session_id, [row["session_id"] for row in rows]) & trials.served
    own = trials.where(chosen & np.isin(trials.workload_id, [id_ for id_ in calls if id_]))
    if not len(own) or np.isnan(own.measured_at).any():
        return
    own = own.in_time()
    start = min((row["started_at"].timestamp() for row in rows if row["started_at"]), default=0)
    start = min(start or math.inf, float(own.measured_at[0]))
    fixed = sum(operator.untuned for operator in run.operators) - sum(times.values())
    yield 0.0, fixed + sum(times.values())
    columns = (own.measured_at.tolist(), own.workload_id.tolist(), own.seconds.tolist())
    for at, id_, time in zip(*columns, strict=True):
        if calls[id_] * time < times[id_]:
            times[id_] = calls[id_] * time
            yield (at - start) / 60, fixed + sum(times.values())
    yield (columns[0][-1] - start) / 60, fixed + sum(times.values())


def _operators_plot(run: NetworkRun, index: int) -> Plot:
    """Draw the time of each operator, and of the runtime itself, before and after tuning."""
    shown, rest = run.operators[:_OPERATORS], run.operators[_OPERATORS:]
    bars = [(visible(each.name, 40), each.untuned, each.seconds) for each in shown]
    if rest:
        untuned, tuned = sum(each.untuned for each in rest), sum(each.seconds for each in rest)
        bars.append((f"{len(rest)} others", untuned, tuned))
    bars.append(("calls and allocations", math.nan, run.runtime))
    size, unit = in_unit([max(tuned for *_, tuned in bars)])
    title = "Where the time goes"
    caption = "Bars are times of one run of the network; lines lead to the untuned times."
    places = range(len(bars))
    tuned_times = [tuned / size for _, _, tuned in bars]
    most = max(tuned_times)
    untuned_times = [min(untuned / size, 4 * most) for _, untuned, _ in bars]
    axes = (
        Axis.from_zero(
            f"time ({unit}); lines end at 4 times the longest bar",
            tuned_times,
            np.nan_to_num(untuned_times),
        ),
        Axis.named("operator", [name for name, _, _ in bars]),
    )
    texts = [f"{name}: {text.seconds(tuned)}" for name, _, tuned in bars]
    marks = [
        Mark("intervals", untuned_times, places, tuned_times, "other"),
        Mark("bars", tuned_times, places, texts=texts),
    ]
    svg = chart(f"network{index}-share", title, caption, axes, marks)
    keys = (Key("tuned", "c0"), Key("untuned", "other"))
    return Plot(title, caption, svg, None, keys=keys, scrolls=True)


def _roofline_plot(run: NetworkRun, roofline: Roofline, index: int) -> Plot | None:
    """Draw the operators below the limits of the machine; None if no operator is known."""
    known = [
        (each, each.flop / each.size, each.rate / 1e9)
        for each in run.operators
        if each.flop and each.size and each.rate
    ]
    if not known:
        return None
    x, y = [at for _, at, _ in known], [rate for *_, rate in known]
    peak, memory = roofline.flops / 1e9, roofline.bandwidths[-1][1] / 1e9
    ends = [min(*x, peak / memory) / 2, max(*x, peak / memory) * 2]
    title = "Roofline"
    caption = (
        f"Each point is an operator. The limits are measured: {text.operations(roofline.flops)}"
        f"FLOP/s, and {text.operations(roofline.bandwidths[-1][1])}B/s from memory (lines above: "
        "from the caches). An operator whose data stays in a cache may be above the lowest line."
    )
    marks = []
    for number, (_, bandwidth) in enumerate(reversed(roofline.bandwidths)):
        rate = bandwidth / 1e9
        corner = min(max(peak / rate, ends[0]), ends[1])
        roof = [min(at * rate, peak) for at in (ends[0], corner, ends[1])]
        kind = "other" if number else "c1"
        marks.append(Mark("line", [ends[0], corner, ends[1]], roof, colour=kind))
    names = [f"{each.name}: {rate:.3g} GFLOP/s" for each, _, rate in known]
    marks.append(Mark("points", x, y, texts=names))
    low = min(*y, ends[0] * memory)
    axes = (
        Axis("operations per byte (FLOP/B)", ends[0], ends[1], logarithmic=True),
        Axis.around("GFLOP/s", [low, peak], y, logarithmic=True),
    )
    svg = chart(f"network{index}-roof", title, caption, axes, marks)
    rows = [
        (visible(each.name, 50), at, operations(rate * 1e9), share(each.limit_share(roofline)))
        for each, at, rate in known
    ]
    table = Table(("operator", "FLOP/B", "FLOP/s", "of the limit"), rows)
    keys = (Key("operator", "c0"), Key("limit with memory", "c1"), Key("with a cache", "other"))
    return Plot(title, caption, svg, table, keys=keys)

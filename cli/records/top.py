"""``tunedb top``."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from .. import choose
from ..layers import (
    AnsweredWorkloads,
    Key,
    layer_name,
    layer_option,
    open_layers,
    resolve_layers,
    targets_in,
    workload_keys,
    workloads_in,
)
from ..network import COLUMNS as NETWORK
from ..network import network_rows, note_network, print_networks
from ..options import Settings, common_options, pass_settings, reading
from ..output import Column, output_options, print_rows

if TYPE_CHECKING:
    from ...results import Record
    from ...storage.store import Store

COLUMNS = (
    Column("rank", "rank", right=True),
    Column("id", "record", right=True),
    Column("digest"),
    Column("workload_id", "workload", right=True, fold=True),
    Column("workload", "name", flexible=True, fold=True),
    Column("arguments", "arguments", text.arguments, flexible=True, fold=True),
    Column("target_id"),
    Column("target", "target", flexible=True, fold=True),
    Column("mean", "mean", text.seconds, right=True),
    Column("median"),
    Column("minimum"),
    Column("repeats", "runs", right=True),
    Column("spread", "spread", text.percent, right=True),
    Column("threads", "threads", right=True),
    Column("source", "source", text.short_path, flexible=True, fold=True),
    Column("trust"),
    Column("layer", "layer", layer_name, flexible=True, fold=True),
    Column("decisions", "decisions", text.decisions, flexible=True),
)

#: Columns after the mean with --session-corrected.
CORRECTED = (
    Column("session_corrected", "corrected", text.seconds, right=True),
    Column("factor", "factor", lambda value: f"{value:.3f}", right=True),
    Column("machine", "machine", right=True, fold=True),
)


@click.command()
@choose.workload_argument(required=False)
@click.option(
    "-k",
    "limit",
    type=click.IntRange(min=1),
    help="Number of programs for each workload and target. Default: 10 of one workload, 1 of each.",
)
@choose.target_option()
@click.option(
    "--step",
    metavar="STEP",
    help="Only programs with this step: its name or code (rfactor, RF, SamplePerfectTile).",
)
@click.option(
    *("--session-corrected", "corrected"),
    is_flag=True,
    help="Rank by time / factor of the session (tunedb sessions); TVM's own order is uncorrected.",
)
@click.option(
    "--network",
    metavar="[NAME]",
    is_flag=False,
    flag_value="",
    help="Show the last tuning run of a network with each of its sizes, or the last run of any.",
)
@layer_option
@output_options
@common_options
@pass_settings
def command(
    settings: Settings,
    workload: str | None,
    limit: int | None,
    target: str | None,
    step: str | None,
    corrected: bool,
    network: str | None,
    layers: tuple[str, ...],
) -> None:
    """Show the best programs of one workload, or of every workload.

    WORKLOAD is an id, a name, or the beginning of a digest. Equivalent workloads, which compute
    the same, count as one. Programs are ranked by mean time within each target; times of two
    targets are never compared. Failed, foreign and retracted records are left out. Where the
    database has no record for a workload and target, the first layer that has one answers.

    With --network: the latency of a network before and after its last tuning run, and the time of
    each operator, with its share of the machine's limit.

    Example:
      tunedb top
      tunedb top matmul -k 5 --target llvm
      tunedb top 3 --json | jq '.[0].mean'
      tunedb top conv2d --step rfactor
      tunedb top matmul --session-corrected
      tunedb top conv2d --layer postgresql://tuning.example/tunedb
      tunedb top --network mobilenet
    """
    if network is not None:
        if workload or limit or target or step or corrected or layers:
            raise click.UsageError("--network shows a whole run: give it no other selection")
        _show_network(settings, network)
        return
    if corrected and layers:
        raise click.UsageError(
            "--session-corrected covers this database only: use it without --layer"
        )
    urls = () if corrected else resolve_layers(settings, layers)
    with reading(settings) as store, open_layers(settings, store, urls) as stores:
        count = limit or (1 if workload is None else 10)
        step_filter = None if step is None else _StepFilter(store, step)
        best = _BestRecords(store, count, step_filter, corrected=corrected)
        groups, target_ids = _resolve(store, workload, target, strict=not stores)
        rows = list(_rows(store, groups, target_ids, best))
        if stores:
            query = _LayerQuery(workload, target, count, step)
            rows += _layer_rows(settings, store, groups, stores, query)
            if not rows:
                _resolve(store, workload, target, strict=True)
        if corrected:
            _note_sessions(settings, store, {row["target_id"] for row in rows})
    if len({(row["layer"], row["target_id"]) for row in rows}) > 1:
        settings.note("Several targets: ranks count within each target.")
    if len({(row["target_id"], row["threads"]) for row in rows}) > len(
        {row["target_id"] for row in rows}
    ):
        settings.note("Different numbers of TVM's threads: their times are not comparable.")
    if corrected and len({(row["target_id"], row["machine"]) for row in rows}) > len(
        {row["target_id"] for row in rows}
    ):
        settings.note("Several machines: ranks count within each machine.")
    empty = "no valid record" if step_filter is None else step_filter.explain()
    columns = _columns(rows, detailed=workload is not None, corrected=corrected)
    print_rows(settings, columns, rows, empty=empty)


def _show_network(settings: Settings, name: str) -> None:
    """Print the last run of a network with each of its sizes; without a name, the last run."""
    from ...errors import NotFoundError
    from ...system.host import fingerprint_of

    with reading(settings) as store:
        runs = [
            (network, fingerprint_of(session)["run"].get("key"))
            for session, network in store.runs.networks()
        ]
    last = runs[-1][1] if runs else None
    matches = {
        network.name: network
        for network, key in runs
        if (f"{network.name} ".startswith(f"{name} ") if name else key == last)
    }
    if not matches:
        names = ", ".join(sorted({network.name for network, _ in runs}))
        raise NotFoundError(
            f"no tuning run of the network {name}; there are: {names}"
            if runs
            else "no network was tuned yet; tune one: tunedb tune network.onnx"
        )
    rows = [row for run in matches.values() for row in network_rows(run)]
    print_rows(settings, NETWORK, rows, show=lambda: print_networks(matches.values()))
    for run in matches.values():
        note_network(settings, run)


@dataclass(frozen=True, slots=True)
class _LayerQuery:
    """The options of a query of layers, in the user's words."""

    workload: str | None
    target: str | None
    limit: int
    step: str | None


class _StepFilter:
    """Filter of programs that have a step, by name or code.

    It selects structures (sketch and tail), each of which many programs share.
    """

    def __init__(self, store: Store, word: str) -> None:
        from ...errors import FormatError
        from ...programs import steps_of

        self._word = word
        self._names: set[str] = set()
        self.structures: set[tuple[int, int | None]] = set()
        for sketch, tail, program in store.programs.structures():
            try:
                steps = steps_of(program)
            except FormatError:  # damaged, or of a newer tunedb
                continue
            self._names |= {step.name for step in steps}
            if word.lower() in {n.lower() for step in steps for n in (step.name, step.code)}:
                self.structures.add((sketch, tail))

    def explain(self) -> str:
        """Return the reason for an empty result."""
        if not self._names:
            return "no valid record"
        return (
            f"no program with the step {self._word!r}; there are: {', '.join(sorted(self._names))}"
        )


class _BestRecords:
    """The best records of a workload and target.

    Parameters
    ----------
    store : Store
        The database.
    limit : int
        Number of records; with `corrected` for each machine.
    step_filter : _StepFilter or None
        Only programs with this step.
    corrected : bool
        Rank by time / factor of the session.
    """

    def __init__(
        self, store: Store, limit: int, step_filter: _StepFilter | None, *, corrected: bool
    ) -> None:
        self._store = store
        self._limit = limit
        self._filter = step_filter
        self._corrected = corrected

    def rows(self, group: list[int], target_id: int) -> Iterator[dict[str, Any]]:
        """Yield their rows, best first; machine by machine with `corrected`."""
        if not self._corrected:
            for rank, record in enumerate(self._by_mean(group, target_id), start=1):
                yield _row(rank, record)
            return
        structures = None if self._filter is None else self._filter.structures
        rank, machine = 0, None
        for ranked in self._store.runs.top_k_corrected(group, target_id, self._limit, structures):
            rank, machine = (rank + 1 if ranked.machine == machine else 1), ranked.machine
            yield _row(rank, self._store.records.get(ranked.id)) | {
                "session_corrected": ranked.seconds,
                "factor": ranked.factor,
                "machine": ranked.machine,
            }

    def _by_mean(self, group: list[int], target_id: int) -> Iterator[Record]:
        store = self._store
        if self._filter is None:
            return iter(store.records.top_k(group, [target_id], self._limit))
        structures = self._filter.structures
        return map(
            store.records.get,
            store.answers.best_ids_with(group, [target_id], self._limit, structures),
        )


def _note_sessions(settings: Settings, store: Store, target_ids: set[int]) -> None:
    """Print which targets have nothing to correct, or lack factors."""
    by_target = store.runs.sessions(sorted(target_ids))
    if by_target and all(len(sessions) == 1 for sessions in by_target.values()):
        settings.note("One session for each target: there is nothing to correct.")
        return
    for target_id, sessions in by_target.items():
        known = {(factor.subject, factor.subject_id) for factor in store.runs.factors(target_id)}
        missing = sum((s.subject, s.subject_id) not in known for s in sessions)
        if missing and len(sessions) > 1:
            settings.note(
                f"Target {target_id}: {missing} of {text.count(len(sessions), 'session')} have no "
                "factor yet and stay uncorrected; estimate them: tunedb sessions --update"
            )


def _columns(rows: Sequence[dict[str, Any]], *, detailed: bool, corrected: bool) -> list[Column]:
    """Return the columns; a table hides those without information."""
    hidden = set() if detailed else {"source", "decisions"}
    if all(row["rank"] == 1 for row in rows):
        hidden.add("rank")
    if all(row["spread"] is None for row in rows):
        hidden.add("spread")
    if all(row["layer"] is None for row in rows):
        hidden.add("layer")
    if len({row["threads"] for row in rows}) < 2:
        hidden.add("threads")
    middle = [column.key for column in COLUMNS].index("mean") + 1
    columns = (*COLUMNS[:middle], *(CORRECTED if corrected else ()), *COLUMNS[middle:])
    return [Column(column.key) if column.key in hidden else column for column in columns]


def _groups(store: Store) -> list[list[int]]:
    """Return the ids of all workloads, in equivalence groups."""
    groups = []
    seen: set[int] = set()
    for summary in store.workloads.find():
        if summary.id not in seen:
            group = store.workloads.equivalent(summary.id)
            groups.append(group)
            seen.update(group)
    return groups


def _resolve(
    store: Store, workload: str | None, target: str | None, *, strict: bool
) -> tuple[list[list[int]], list[int] | None]:
    """Return groups of equivalent workloads, and the ids of targets (None for all).

    Raises
    ------
    NotFoundError
        Nothing matches, and `strict`; otherwise the result is empty.
    """
    from ...errors import NotFoundError

    try:
        groups = _groups(store) if workload is None else [store.lookup.workload(workload)]
    except NotFoundError:
        if strict:
            raise
        groups = []
    try:
        return groups, choose.find_targets(store, target)
    except NotFoundError:
        if strict:
            raise
        return groups, []


def _rows(
    store: Store, groups: list[list[int]], target_ids: list[int] | None, best: _BestRecords
) -> Iterator[dict[str, Any]]:
    """Yield the rows of every workload and target, best first."""
    for group in groups:
        for target_id in store.answers.targets(group):
            if target_ids is None or target_id in target_ids:
                yield from best.rows(group, target_id)


def _layer_rows(
    settings: Settings,
    own: Store,
    groups: list[list[int]],
    stores: list[Store],
    query: _LayerQuery,
) -> list[dict[str, Any]]:
    """Return rows of layers; the first layer with a record answers a workload and target."""
    from ...errors import TuneDBError
    from ...exchange.peers import skipped_message

    answered = AnsweredWorkloads()
    for group in groups:
        for target_id in own.answers.targets(group):
            answered.add(own, group, target_id)
    keys = None
    if query.workload is not None and groups:
        keys = workload_keys(own, groups[0])
    rows = []
    for store in stores:
        try:
            rows += _rows_of_layer(store, own, keys, answered, query)
        except TuneDBError as error:
            settings.warn(skipped_message(store.location, str(error)))
        except Exception as error:  # any error in rows of a foreign database
            damage = f"damaged ({type(error).__name__}: {error}); ask for another copy"
            settings.warn(skipped_message(store.location, damage))
    return rows


def _rows_of_layer(
    store: Store,
    own: Store,
    keys: set[Key] | None,
    answered: AnsweredWorkloads,
    query: _LayerQuery,
) -> list[dict[str, Any]]:
    if query.workload is None:
        groups = _groups(store)
    else:
        ids = workloads_in(store, keys, query.workload)
        groups = [ids] if ids else []
    target_ids = targets_in(store, own, query.target)
    step_filter = None if query.step is None else _StepFilter(store, query.step)
    best = _BestRecords(store, query.limit, step_filter, corrected=False)
    rows = []
    for group in groups:
        for target_id in store.answers.targets(group):
            if target_ids is not None and target_id not in target_ids:
                continue
            if answered.add(store, group, target_id):
                rows += [row | {"layer": store.location} for row in best.rows(group, target_id)]
    return rows


def _row(rank: int, record: Record) -> dict[str, Any]:
    from ...programs import tool_of
    from ...programs.step_text import arguments_of, decisions_of
    from ...system.host import threads_of

    measurement = record.measurement
    times = measurement.run_secs or ()
    program = measurement.program
    tool = tool_of(program.workload.format)
    return {
        "rank": rank,
        "id": record.id,
        "digest": measurement.digest.hex(),
        "workload_id": record.workload_id,
        "workload": program.workload.name,
        "arguments": arguments_of(measurement),
        "target_id": record.target_id,
        "target": choose.target_label(program.target),
        "mean": record.mean,
        "median": statistics.median(times) if times else None,
        "minimum": min(times) if times else None,
        "repeats": len(times),
        "spread": spread(times),
        "threads": threads_of(measurement.session) if program.target.is_cpu else None,
        "source": record.source.name,
        "trust": record.source.trust.name.lower(),
        "layer": None,
        "decisions": decisions_of(tool, tool.steps(program.trace)),
    }


def spread(times: Sequence[float]) -> float | None:
    """Return the standard deviation of times over their mean; None for fewer than two."""
    mean = statistics.fmean(times) if times else 0.0
    return statistics.stdev(times) / mean if len(times) > 1 and mean > 0 else None

"""``tunedb explain`` and ``tunedb explain model``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ...system import text
from ..card import share
from ..choose import target_label
from ..lazy import LazyGroup
from ..options import Settings, common_options, pass_settings, reading
from ..output import (
    Column,
    bold,
    output_options,
    print_fields,
    print_object,
    print_rows,
    print_table,
)
from ..progress import progress_bar
from .registry import find_model

if TYPE_CHECKING:
    from ...models.explain import Contributions, Importance
    from ...models.model import Model
    from ...results import Record, StoredModel
    from ...storage.store import Store


def _score(value: float | None) -> str:
    return text.NOTHING if value is None else f"{value:.4f}"


def _signed(value: float) -> str:
    return f"{value:+.4f}"


COLUMNS = (
    Column("name", "column", flexible=True),
    Column("group", "group", flexible=True),
    Column("shap", "mean |SHAP|", _score, right=True),
    Column("gain", "gain", text.percent, right=True),
    Column("splits", "splits", text.number, right=True),
)
_GROUPS = tuple(
    Column("name", "group", column.show, flexible=True) if column.key == "name" else column
    for column in COLUMNS
    if column.key != "group"
)

PROGRAM_COLUMNS = tuple(
    map(
        Column,
        (
            *("model", "program", "record", "workload_id", "workload", "target_id", "target"),
            *("mean", "measured", "score", "bias", "columns", "rows"),
        ),
    )
)
_CONTRIBUTION = (
    Column("name", "column", flexible=True),
    Column("group", "group", flexible=True),
    Column("contribution", "contribution", _signed, right=True),
    Column("value", "value", right=True),
)
_ROW = (
    Column("row", "statement", right=True),
    Column("contribution", "contribution", _signed, right=True),
    Column("most", "largest contributions", flexible=True),
)


#: Smaller contributions print as 0 and are left out.
_LEAST = 0.00005


@click.group(
    cls=LazyGroup,
    lazy={
        "model": (
            "models.explain",
            "explain_model",
            "Show which columns a model uses, or why a program has its score.",
        ),
        "module": (
            "models.explain_module",
            "explain_module",
            "Show the record that each function of a module gets, or why it gets none.",
        ),
    },
    name="explain",
)
@common_options
def command() -> None:
    """Explain the scores of a cost model, or why a module has no record.

    Example:
      tunedb explain model 3 --record 42
      tunedb explain module model.py
    """


@click.command(name="model")
@click.argument("words", metavar="[MODEL]", required=False)
@click.option("--record", metavar="RECORD", help="Explain the score of this record's program.")
@click.option(
    "--program", metavar="PROGRAM", type=int, help="Explain the score of the program with this id."
)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="Number of columns to show; JSON and CSV have all.",
)
@output_options
@common_options
@pass_settings
def explain_model(
    settings: Settings,
    words: str | None,
    record: str | None,
    program: int | None,
    top: int,
) -> None:
    """Show which columns a model uses, or why a program has its score.

    MODEL is an id (tunedb models). Default: the newest model with boosters. "mean |SHAP|" is how
    far a column moves a program's score on average, over 1,000 programs of the training data;
    "gain" is the column's share of the loss that all splits removed. The contributions of a
    program's columns are signed: their sum and the bias are the score.

    Example:
      tunedb explain model
      tunedb explain model 3 --top 40
      tunedb explain model --record 42
    """
    from ...errors import UsageError
    from ...models.store import load_model

    if record is not None and program is not None:
        raise UsageError("give --record or --program, not both")
    with reading(settings) as store:
        stored = _newest(store) if words is None else find_model(store, words)
        model = load_model(store, stored)
        if record is not None or program is not None:
            subject = _subject(store, record, program)
            _explain_program(settings, store, stored, model, subject, top)
            return
        with progress_bar(settings, None) as progress:
            progress.describe("reading records")
            columns = _importance(store, stored, model)
    rows = [_row(column) for column in columns]
    print_rows(settings, COLUMNS, rows, show=lambda: _show_importance(stored, columns, top))


def _newest(store: Store) -> StoredModel:
    from ...errors import NotFoundError
    from ...models.store import KIND

    models = store.models.all(kind=KIND)
    if not models:
        raise NotFoundError("no model yet; train one: tunedb train")
    # A tuning run stores cards without boosters.
    return next((model for model in reversed(models) if model.size is not None), models[-1])


def _importance(store: Store, stored: StoredModel, model: Model) -> list[Importance]:
    """Return the importance of the columns on a sample of the model's training programs."""
    from ...models import explain
    from ...models.dataset import with_rows
    from ...models.store import training_dataset

    sample = explain.drawn(training_dataset(store, stored))
    return explain.importance(model, with_rows(store, sample))


def _row(importance: Importance) -> dict[str, Any]:
    return {column.key: getattr(importance, column.key) for column in COLUMNS}


def _show_importance(stored: StoredModel, columns: Sequence[Importance], top: int) -> None:
    from ...models.explain import by_group

    features = stored.card["features"]["name"]
    click.echo(bold(text.clean(f"Model {stored.id}, features {features}: groups of columns")))
    print_table(_GROUPS, [_row(group) for group in by_group(columns)][:top])
    unused = stored.card["features"]["columns"] - len(columns)
    click.echo()
    click.echo(bold("Columns"))
    print_table(COLUMNS, [_row(column) for column in columns[:top]])
    hidden = len(columns) - min(top, len(columns))
    rest = [f"{hidden} more are used (--top)"] if hidden else []
    rest += [f"{unused} are in no tree"] if unused > 0 else []
    if rest:
        click.echo("; ".join(rest))


# ---------------------------------------------------------------------- one program


@dataclass(frozen=True, slots=True)
class _ExplainedProgram:
    """A program to explain, and its record with ``--record``."""

    program_id: int
    workload_id: int
    target_id: int
    record: Record | None


def _subject(store: Store, record: str | None, program: int | None) -> _ExplainedProgram:
    from ...errors import NotFoundError

    stored = None if record is None else store.records.get(store.lookup.record(record))
    if stored is not None:
        (program,) = store.programs.ids([stored.measurement.program.digest])
    programs = [] if program is None else store.programs.get([program])
    if not programs:
        raise NotFoundError(
            f"no program {program}; tunedb explain model --record takes a record's id"
        )
    row = programs[0]
    return _ExplainedProgram(row.id, row.workload_id, row.target_id, stored)


def _explain_program(
    settings: Settings,
    store: Store,
    stored: StoredModel,
    model: Model,
    subject: _ExplainedProgram,
    top: int,
) -> None:
    """Print the contribution of each column to a program's score."""
    from ...errors import NotFoundError
    from ...features.base import feature_set
    from ...models.explain import contributions

    features = feature_set(model.feature_set)
    model.check(features)
    (rows,) = store.features.rows(features, [subject.program_id])
    if rows is None:
        raise NotFoundError(
            f"program {subject.program_id} has no rows of {features.name}; "
            f"run: tunedb extract --set {features.name}"
        )
    explained = contributions(model, rows)
    row = _program_row(store, stored, subject, explained)
    row["measured"] = _measured(store, stored, subject)
    print_object(settings, PROGRAM_COLUMNS, row, lambda: _show_program(row, explained, top))


def _program_row(
    store: Store, stored: StoredModel, subject: _ExplainedProgram, explained: Contributions
) -> dict[str, Any]:
    from ...models.explain import group_of

    by_column = explained.by_column
    order = sorted(range(len(explained.columns)), key=lambda i: -abs(by_column[i]))
    return {
        "model": stored.id,
        "program": subject.program_id,
        "record": None if subject.record is None else subject.record.id,
        "workload_id": subject.workload_id,
        "workload": store.workloads.get(subject.workload_id).name,
        "target_id": subject.target_id,
        "target": target_label(store.targets.get(subject.target_id)),
        "mean": None if subject.record is None else subject.record.mean,
        "score": explained.score,
        "bias": explained.bias,
        "columns": [
            {
                "name": explained.columns[i],
                "group": group_of(explained.columns[i]),
                "contribution": float(by_column[i]),
                "values": [float(value) for value in explained.values[:, i]],
            }
            for i in order
        ],
        "rows": [float(value) for value in explained.by_row],
    }


def _measured(
    store: Store, stored: StoredModel, subject: _ExplainedProgram
) -> list[dict[str, Any]]:
    """Return the program's time on each machine that measured it, as the model's label."""
    from ...errors import NotFoundError
    from ...features.base import feature_set
    from ...models.dataset import load
    from ...models.scope import Scope

    recipe = stored.card["recipe"]
    try:
        examples = load(
            store,
            feature_set(recipe["features"]),
            label=recipe["label"],
            corrected=recipe["corrected"],
            scope=Scope([subject.workload_id], [subject.target_id]),
            rows=False,
        )
    except NotFoundError:  # the workload has no measurement
        return []
    own = examples.take(examples.program_ids == subject.program_id)
    return [
        {
            "machine": examples.groups[group].machine,
            "seconds": float(seconds) if throughput else None,
            "throughput": float(throughput),
        }
        for group, seconds, throughput in zip(own.group, own.seconds, own.throughput, strict=True)
    ]


def _show_program(row: dict[str, Any], explained: Contributions, top: int) -> None:
    fields = [
        ("workload", text.clean(f"{row['workload_id']} {row['workload']}")),
        ("target", f"{row['target_id']} {row['target']}"),
        *(("measured", _time(measured)) for measured in row["measured"]),
        ("score", f"{row['score']:.4f} = {row['bias']:.4f} (bias) {_sum_words(explained)}"),
    ]
    print_fields(fields, heading=f"Program {row['program']} by model {row['model']}")
    click.echo()
    columns = [c for c in row["columns"] if abs(c["contribution"]) >= _LEAST][:top]
    print_table(_CONTRIBUTION, [{**c, "value": _values(c["values"])} for c in columns])
    if len(row["rows"]) > 1:
        click.echo()
        print_table(_ROW, [_statement(explained, number) for number in range(len(row["rows"]))])


def _time(measured: dict[str, Any]) -> str:
    """Format a program's time, with its share of the best throughput on the same machine."""
    machine = f" on machine {measured['machine']}" if measured["machine"] else ""
    if measured["seconds"] is None:
        return f"failed{machine}"
    best = f"{share(measured['throughput'])} of the best throughput"
    return f"{text.seconds(measured['seconds'])}, {best}{machine}"


def _sum_words(explained: Contributions) -> str:
    up = float(explained.rows[explained.rows > 0].sum())
    down = float(explained.rows[explained.rows < 0].sum())
    return f"+ {up:.4f} - {-down:.4f}"


def _values(values: Sequence[float]) -> str:
    """Format a column's value: one number, or the range over the program's statements."""
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"


def _statement(explained: Contributions, number: int) -> dict[str, Any]:
    """Return a statement with the columns that contribute most to its score."""
    row = explained.rows[number]
    columns = sorted(range(len(row)), key=lambda i: -abs(row[i]))[:3]
    words = ", ".join(f"{explained.columns[i]} {row[i]:+.3f}" for i in columns if row[i])
    return {"row": number, "contribution": float(row.sum()), "most": words}

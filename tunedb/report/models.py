"""Section about cost models: cards, accuracy on measured programs, and what they look at."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from ..errors import TuneDBError
from ..models.cards import VERSION, pairwise
from ..models.drift import drift, ranks
from ..models.explain import gains
from ..models.store import KIND, load_model
from ..results import StoredModel
from ..system import text
from .charts import Axis, Mark, chart
from .contents import Contents
from .page import Cell, Plot, Section, Table, operations, share
from .svg import visible

#: Models with plots, columns of a model, and points of a plot.
_MODELS, _COLUMNS, _POINTS = 3, 15, 1_500


def models_section(contents: Contents) -> Section:
    """Return the section about the cost models, the newest first."""
    store = contents.store
    models = store.models.all(kind=KIND)
    readable = [model for model in models if model.card.get("card") == VERSION]
    if not readable:
        return Section("Models", notes=("No model yet. Train one: tunedb train",))
    rows = [_card_row(model) for model in reversed(readable)]
    columns = (
        *("model", "features", "loss", "programs", "workloads", "pairs in order", "size"),
        "trained",
    )
    drifts = drift(store)
    names = {task["workload_id"]: task["workload"] for task in contents.tasks}
    drifted = [
        (
            *(each.model_id, names.get(each.workload_id, str(each.workload_id)), each.trials),
            *(share(each.pairwise), share(each.threshold)),
            {None: "unknown", True: "yes", False: "no"}[each.drifted],
        )
        for each in drifts
    ]
    heads = ("model", "workload", "trials", "pairs in order", "alarm below", "drift")
    tables = {"Cards": Table(columns, rows, more="tunedb models list")}
    if drifted:
        tables["Drift: predictions of programs that were measured later"] = Table(
            heads, drifted, more="tunedb models drift"
        )
    counts = store.training.predictions()
    shown = sorted(readable, key=lambda m: (-counts.get(m.id, 0), -m.id))[:_MODELS]
    parts = tuple(part for model in shown if (part := _model_part(contents, model)))
    note = (
        "Pairs in order: the share of pairs of programs of workloads that the model had not seen, "
        "whose order it predicts; a random order has 50 %."
    )
    return Section("Models", notes=(note,), tables=tables, parts=parts)


def _card_row(model: StoredModel) -> tuple[Cell, ...]:
    card = model.card
    return (
        *(model.id, card["features"]["name"], card["recipe"]["loss"]),
        *(card["data"]["programs"], card["data"]["workloads"], share(pairwise(card))),
        operations(model.size, "B"),
        text.moment(model.created_at),
    )


def _model_part(contents: Contents, model: StoredModel) -> Section | None:
    plots = [plot for plot in (_ranks_plot(contents, model), _gain_plot(contents, model)) if plot]
    return Section(f"Model {model.id}", plots=(plots,)) if plots else None


def _ranks_plot(contents: Contents, model: StoredModel) -> Plot | None:
    """Draw predicted against measured ranks; None without predictions."""
    found = ranks(contents.store.training.trials(model.id))
    pools: dict[tuple[int, int], int] = defaultdict(int)
    for trial, *_ in found:
        pools[trial.workload_id, trial.target_id] += 1
    points = [
        ((measured - 0.5) / size, (predicted - 0.5) / size)
        for trial, predicted, measured in found
        if measured is not None and (size := pools[trial.workload_id, trial.target_id]) > 1
    ]
    if not points:
        return None
    drawn = np.array(points[:: max(1, len(points) // _POINTS)])
    title = "Predicted against measured"
    caption = (
        f"{text.count(len(points), 'program')} whose score the model gave before they ran. Ranks "
        "count within a workload, from 0 (fastest) to 1; a perfect model is the dashed line."
    )
    axes = Axis("measured rank", 0, 1), Axis("predicted rank", 0, 1)
    marks = [
        Mark("reference", [0, 1], [0, 1]),
        Mark("dots", drawn[:, 0], drawn[:, 1]),
    ]
    svg = chart(f"model{model.id}-ranks", title, caption, axes, marks, size=(420, 380))
    rows = [tuple(map(float, row)) for row in drawn]
    return Plot(title, caption, svg, Table(("measured rank", "predicted rank"), rows))


def _gain_plot(contents: Contents, model: StoredModel) -> Plot | None:
    """Draw the columns on which a model's trees decide; None if only its card is stored."""
    if model.size is None:
        return None
    try:
        found = gains(load_model(contents.store, model))
    except TuneDBError:  # XGBoost is not installed, or the model is of another version
        return None
    shown = [(name, gain) for name, gain in found if gain > 0][:_COLUMNS]
    if not shown:
        return None
    title = "What the model looks at"
    caption = (
        f"Share of the gain of all splits for the first {len(shown)} of {len(found)} columns; "
        "tunedb explain says more."
    )
    axes = (
        Axis.from_zero("share of the gain (%)", [100 * gain for _, gain in shown]),
        Axis.named("column", [visible(name, 34) for name, _ in shown]),
    )
    marks = [Mark("bars", [100 * gain for _, gain in shown], range(len(shown)))]
    svg = chart(f"model{model.id}-gain", title, caption, axes, marks)
    return Plot(title, caption, svg, Table(("column", "share of the gain"), shown), scrolls=True)

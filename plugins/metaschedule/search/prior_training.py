"""Training of the models of a prior (:mod:`tunedb.models.prior_models`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ....exchange.prior import unpacked
from ....features.steps import STEPS
from ....models import cards
from ....models.prior_models import PriorModel, name_of
from ....models.recipe import Recipe
from ....models.training import fit, tuning_recipe
from ....storage.store import Store
from ..cost_model.learner import row_of
from ..targets import class_of
from .draft_model import FEATURES, ComputedExamples

if TYPE_CHECKING:
    from ....features.base import StepFeatures

__all__ = ["trained_models"]

#: Diverse programs that a model learns from, and its boosters. One booster overrates some of
#: thousands of drafts, and the best of them is chosen; several seldom overrate the same
#: (docs/benchmarks.md). A tuning run trains one on fewer programs, because it trains again and
#: again.
_PROGRAMS, _MEMBERS = 12_000, 4
#: Sets of the models: of drafts, and of replayed programs.
_SETS: Final[tuple[StepFeatures, ...]] = (FEATURES, STEPS)


def trained_models(prior: Path) -> Iterator[tuple[str, PriorModel]]:
    """Train the models of a prior: two for each class of its targets.

    Models of all programs order stored ones better and choose worse ones of thousands of drafts:
    most programs of a search are good, and drafts are not.

    Parameters
    ----------
    prior : Path
        The prior's bundle.

    Yields
    ------
    str and PriorModel
        Name of a model, and the model.

    Raises
    ------
    TuneDBError
        The prior is damaged, or of another version.
    """
    with Store(unpacked(prior), read_only=True) as store:
        classes: dict[tuple[str, str], list[int]] = {}
        for each in store.targets.find():
            class_ = class_of(each.target)
            if class_ is not None:
                classes.setdefault(class_, []).append(each.id)
        for class_, ids in classes.items():
            for features in _SETS:
                cost = cards.TrainingCost()
                recipe = Recipe(features=features.name)
                source = ComputedExamples(store, features)
                examples = source.with_rows(source.diverse(recipe, ids, _PROGRAMS))
                recipe = replace(tuning_recipe(recipe, len(examples)), members=_MEMBERS)
                fitted = fit(examples, recipe)
                fitted = replace(fitted, model=fitted.model.compact())
                row = row_of(fitted, examples, store.key, cost)
                yield name_of(class_, features), PriorModel(fitted.model, row)

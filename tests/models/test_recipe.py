"""Recipes: JSON and ranges of numbers."""

import json

import pytest

from tunedb.errors import UsageError
from tunedb.models.recipe import Recipe


def test_equal_recipes_have_equal_bytes():
    recipe = Recipe(loss="log:0.01", members=3)
    values = json.loads(recipe.to_json())
    assert Recipe.from_dict(values) == recipe
    assert Recipe.from_dict(dict(reversed(values.items()))).to_json() == recipe.to_json()
    assert Recipe().to_json() != recipe.to_json()


def test_from_dict_rejects_unknown_fields():
    values = json.loads(Recipe().to_json())
    with pytest.raises(UsageError, match="no temperature; rebuild: tunedb train"):
        Recipe.from_dict({**values, "temperature": 2})


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"eta": 0.0}, "a recipe with eta 0.0; the least is 1e-06"),
        ({"eta": 1.1}, "a recipe with eta 1.1; the greatest is 1"),
        ({"members": 0}, "a recipe with members 0; the least is 1"),
        ({"members": 1001}, "a recipe with members 1001; the greatest is 1000"),
        ({"patience": -1}, "a recipe with patience -1; the least is 0"),
        ({"seed": -1}, "a recipe with seed -1; the least is 0"),
        ({"seed": 2**64}, "a recipe with seed 18446744073709551616; the greatest is .*"),
        ({"hessian_power": -1.0}, "a recipe with hessian_power -1.0; the least is 0"),
        ({"hessian_power": float("inf")}, "a recipe with hessian_power inf; give a number"),
        ({"reg_lambda": float("nan")}, "a recipe with reg_lambda nan; give a number"),
    ],
)
def test_check_rejects_numbers_out_of_range(choices, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        Recipe(**choices).check()


def test_check_accepts_the_bounds_of_ranges():
    Recipe(seed=2**64 - 1, members=1000, eta=1.0, patience=0, hessian_power=0.0).check()

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
    with pytest.raises(UsageError, match="no temperature; rebuild: tunedb train"):
        Recipe.from_dict({**values, "temperature": 2})


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"eta": 0.0}, "eta 0.0; the least is 1e-06"),
        ({"eta": 1.1}, "eta 1.1; the greatest is 1"),
        ({"members": 0}, "members 0; the least is 1"),
        ({"members": 1001}, "members 1001; the greatest is 1000"),
        ({"patience": -1}, "patience -1; the least is 0"),
        ({"seed": -1}, "seed -1; the least is 0"),
        ({"seed": 2**64}, "seed 18446744073709551616; the greatest is .*"),
        ({"hessian_power": -1.0}, "hessian_power -1.0; the least is 0"),
        ({"hessian_power": float("inf")}, "hessian_power inf; give a number"),
        ({"reg_lambda": float("nan")}, "reg_lambda nan; give a number"),
    ],
)
def test_check_rejects_numbers_out_of_range_and_accepts_bounds(choices, message):
    with pytest.raises(UsageError, match=f"^a recipe with {message}$"):
        Recipe(**choices).check()
    Recipe(seed=2**64 - 1, members=1000, eta=1.0, patience=0, hessian_power=0.0).check()

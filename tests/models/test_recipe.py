"""A recipe as JSON and back."""

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


def test_fields_of_another_version_are_refused():
    values = json.loads(Recipe().to_json())
    with pytest.raises(UsageError, match="no temperature; rebuild: tunedb train"):
        Recipe.from_dict({**values, "temperature": 2})

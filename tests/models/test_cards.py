import dataclasses
import json

import numpy as np
import pytest
from learnable import examples_of
from small_data import SMALL_STEPS, WORKLOADS

from tunedb.errors import FormatError
from tunedb.identity import canonical_json
from tunedb.models import cards, training_job
from tunedb.models.dataset import FAILURES, load
from tunedb.models.recipe import Recipe
from tunedb.models.scope import Scope
from tunedb.models.training import select
from tunedb.records import FailureKind

RECIPE = Recipe(features="small.steps", rounds=10, patience=0, max_depth=3, training_set="first:12")


@pytest.fixture
def examples(stored):
    return load(stored, SMALL_STEPS)


def make_card(examples, **fields):
    learnt = select(examples, RECIPE)
    return cards.make_card(RECIPE, examples, learnt, store_key="s", body=b"boosters", **fields)


def test_card_describes_data_recipe_and_body(examples):
    card = make_card(examples, counts={"records": 7, "left_out": {"x": 1}})
    data, learnt = card["data"], card["learnt"]
    failed = np.bincount(examples.failures, minlength=len(FAILURES))
    assert data["programs"] == len(examples) and data["rows"] == len(examples.rows)
    assert data["workloads"] == len(examples.workloads)
    assert (data["targets"], data["machines"]) == (2, 2)
    assert data["failed"]["timeout"] == failed[FAILURES.index(FailureKind.TIMEOUT)]
    assert sum(data["failed"].values()) == examples.failed.sum()
    assert data["digest"] == examples.digest.hex()
    assert (data["records"], data["left_out"]) == (7, {"x": 1})
    middle = np.median(examples.throughput[~examples.failed])
    assert data["throughput"][2] == pytest.approx(middle)
    # The workload with only failures is not in the training data.
    assert learnt["workloads"] == data["workloads"] - 1
    assert learnt["programs"] == len(select(examples, RECIPE)) < data["programs"]
    assert {WORKLOADS[0].digest.hex(), WORKLOADS[5].digest.hex()} <= set(learnt["workload_digests"])
    assert card["features"] == {"name": "small.steps", "version": 1, "columns": 4}
    assert card["recipe"] == dataclasses.asdict(RECIPE)
    assert card["scope"] == {"workloads": None, "targets": None, "sources": None}
    assert card["body"] == {"digest": cards.body_digest(b"boosters").hex(), "bytes": 8}
    assert (card["evaluation"], card["drift"]) == (None, {"pairwise_p5": None})
    card = make_card(examples, cost=cards.TrainingCost().to_json(), training={"rounds": 3})
    assert json.loads(canonical_json(card)) == card
    assert card["cost"]["peak_bytes"] > 1_000_000
    assert 0 <= card["cost"]["seconds"] < 60


def test_describe_data_returns_no_throughput_if_all_programs_failed():
    examples = examples_of(np.zeros((3, 1)), [1, 2], [0, 1], [0.0, 0.0])
    told = cards.describe_data(dataclasses.replace(examples, failures=np.int8([1, 2])))
    assert told["throughput"] is None
    assert told["failed"] == {str(FAILURES[1]): 1, str(FAILURES[2]): 1}
    assert cards.describe_data(examples.take([0]))["workloads"] == 1


def test_scope_survives_round_trip_by_digests(stored):
    scope = Scope(workload_ids=[2, 1], target_ids=[2], source_ids=[1])
    values = json.loads(json.dumps(scope.to_json(stored)))
    second = stored.workloads.get(2)
    assert values["workloads"][0] == {"digest": second.digest.hex(), "name": second.name}
    assert values["sources"][0]["name"] == "own"
    assert Scope.from_json(stored, values) == scope
    assert Scope.from_json(stored, Scope().to_json(stored)) == Scope()
    # A missing target is left out; without any other the scope has none, and not all.
    values["targets"][0]["digest"] = "00" * 16
    assert Scope.from_json(stored, values).target_ids == []


def test_digest_of_row_equals_model_digest_and_rejects_other_bodies(examples):
    card = make_card(examples)
    row = {"kind": "ranker", "parameters": b"{}", "training_digest": b"t" * 16}
    row |= {"card": canonical_json(card), "body": b"boosters"}
    expected = cards.model_digest("ranker", b"{}", b"t" * 16, card["versions"])
    assert cards.digest_of_row(**row) == expected
    assert cards.digest_of_row(**row | {"body": None}) == expected
    assert cards.digest_of_row(**row | {"parameters": b"[]"}) != expected
    with pytest.raises(FormatError, match="body"):
        cards.digest_of_row(**row | {"body": b"others"})
    with pytest.raises(FormatError, match="not an object"):
        cards.digest_of_row(**row | {"card": b"[]"})


def test_thinned_keeps_at_most_20_rounds_with_first_and_last():
    assert cards.thinned([]) == []
    assert cards.thinned([0.5, 0.6]) == [[0, 0.5], [1, 0.6]]
    long = cards.thinned(list(range(300)))
    assert len(long) == 20
    assert (long[0], long[-1]) == ([0, 0.0], [299, 299.0])
    assert all(i == value for i, value in long)


def test_versions_are_compared_as_numbers():
    assert cards.numbers("3.10.0") > cards.numbers("3.9.1")


def test_quick_evaluation_compares_model_with_baselines(examples):
    # Of unknown origins, so that the first trials of a group are its random pool.
    examples, seen = dataclasses.replace(examples, origins=np.zeros(len(examples), np.int8)), []
    options = {"noise": np.array([-0.01, 0.01]), "threads": 1}
    recipe = dataclasses.replace(RECIPE, rounds=40)
    on_step = lambda *step: seen.append(step)  # noqa: E731
    told = training_job.quick_evaluation(examples, recipe, on_step=on_step, **options)
    assert json.loads(canonical_json(told)) == told
    assert told["impossible"] is None and seen
    assert set(told["pools"]) == {"random", "search"}
    figures = {pool: values["figures"] for pool, values in told["pools"].items()}
    assert set(figures["random"]) == {"model", "random", "nearest", "noise floor"}
    pairwise = {name: values["pairwise"][0] for name, values in figures["random"].items()}
    assert pairwise["random"] == 0.5 < pairwise["model"] < pairwise["noise floor"] <= 1
    assert told["pairwise"] == pairwise["model"]
    assert told["pairwise_p5"] <= min(each["model"]["pairwise"][0] for each in figures.values())
    card = make_card(examples, evaluation=told)
    assert cards.pairwise(card) == told["pairwise"]
    assert card["drift"]["pairwise_p5"] == told["pairwise_p5"]


def test_quick_evaluation_uses_all_trials_if_random_pools_are_too_small(examples):
    told = training_job.quick_evaluation(examples, RECIPE, threads=1)
    figures = told["pools"]["search"]["figures"]
    assert "random" not in told["pools"]
    assert told["pairwise"] == figures["model"]["pairwise"][0]
    assert "noise floor" not in figures  # the noise is unknown

from dataclasses import dataclass, replace

import numpy as np
from learnable import learnable
from test_share import dense, workloads

from tunedb.models.prior_card import FOLDS, shares_of_first_choices


@dataclass
class Sum:
    """A model that scores programs of :func:`learnable` rightly, or in the opposite order."""

    sign: int

    def scores(self, rows, starts):
        return self.sign * np.add.reduceat(rows[:, 0] - rows[:, 1], starts[:-1])


def test_first_choices_hold_out_workloads_of_similar_shapes_together():
    examples = replace(learnable(6, failing=0), workloads=workloads([16, 17, 64, 65, 256, 257]))
    trained = []

    def train(part):
        trained.append(frozenset(part.workload.tolist()))
        return Sum(1)

    assert shares_of_first_choices(examples, train).tolist() == [1.0] * 6
    assert len(trained) == FOLDS
    assert set(trained) == {frozenset(range(6)) - held for held in ({0, 1}, {2, 3}, {4, 5})}
    assert shares_of_first_choices(examples, lambda _: Sum(-1)).max() < 0.5
    assert len(shares_of_first_choices(examples, lambda _: None)) == 0


def test_first_choices_leave_out_workloads_of_a_family_of_their_own():
    alone = (dense(0, 16, 16, family="softmax"), *workloads([16, 64, 256])[1:])
    examples = replace(learnable(3, failing=0), workloads=alone)
    assert len(shares_of_first_choices(examples, lambda _: Sum(1))) == 2

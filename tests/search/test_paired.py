"""Paired comparison: which program leads, and which ones are beaten."""

import random

from tunedb.search.paired import LEAST_ROUNDS, Standing, standing


def test_nothing_is_decided_in_two_rounds():
    rounds = [[1.0, 2.0]] * LEAST_ROUNDS
    assert standing(rounds[:-1]) == Standing(0, (1,))
    assert standing(rounds) == Standing(0, ())


def test_standing_decides_despite_disturbance_of_whole_rounds():
    """The machine is up to three times slower, the second program 5 % in each round."""
    assert standing([[2.0, 2.1], [3.0, 3.15], [1.0, 1.05], [2.0, 2.1]]) == Standing(0, ())


def test_standing_keeps_rival_after_disturbance_of_one_program():
    assert standing([[1.0, 1.05], [1.0, 3.15], [1.0, 1.05], [2.0, 1.1]]) == Standing(0, (1,))


def test_programs_within_noise_are_rivals_until_there_are_many_rounds():
    noisy = [[1.0, 1.05], [1.05, 1.0], [1.0, 1.06]]
    assert standing(noisy) == Standing(0, (1,))
    assert standing(noisy + [[1.0, 1.06]] * 20) == Standing(0, ())
    # A difference below 1 % does not matter.
    assert standing([[1.0, 1.002], [1.001, 1.0], [1.0, 1.001]]) == Standing(0, ())


def test_winner_is_within_1_percent_of_best_in_95_percent_of_comparisons():
    """Four programs within 4 % are compared in at most twelve rounds, as in a final."""
    rng = random.Random(0)
    close = 0
    for _ in range(300):
        true = [1 + 0.04 * rng.random() for _ in range(4)]
        rounds = []
        for _ in range(12):
            drift = rng.choice([1.0, 1.0, 1.3])
            rounds.append([drift * seconds * rng.gauss(1, 0.01) for seconds in true])
            now = standing(rounds)
            if not now.rivals:
                break
        close += true[now.leader] <= 1.01 * min(true)
    assert close >= 0.95 * 300

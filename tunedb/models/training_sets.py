"""Choice of the training programs.

More records are not better by themselves: late in a search nearly all programs are good, and a
model of mostly good programs does not learn to recognise bad ones.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from ..records import Origin
from .dataset import ORIGINS, Dataset

Ints = NDArray[np.int64]

#: Trials of each group that ``first`` takes by default: one round of MetaSchedule's
#: and auto_scheduler's search, before which no model has chosen anything.
FIRST_TRIALS = 64

#: Programs that ``diverse`` takes by default.
DIVERSE_PROGRAMS = 2000

#: Trials of each group among which ``diverse`` chooses, unless they are too few: late in a search
#: nearly all programs are good.
_EARLY_TRIALS = 128

#: Levels of throughput, equally wide in its square root. Stretches of equally many programs hold
#: too few fast ones.
_LEVELS = 8

#: The three sources of candidates of Ansor's search (Zheng et al., OSDI 2020, section 5.1): random
#: annotations, mutations of programs with high scores, and measured programs.
_SOURCES = (Origin.RANDOM, Origin.MUTATED, Origin.MEASURED)


class All:
    """All programs."""

    name = "all"

    def choose(self, examples: Dataset, argument: str, seed: int) -> Ints:
        """Return the numbers of all programs.

        Raises
        ------
        UsageError
            The argument is not empty.
        """
        if argument:
            raise UsageError(f"training set 'all' takes no argument, got {argument!r}")
        return np.arange(len(examples))


class First:
    """The first trials of each group: ``first:64``."""

    name = "first"

    def choose(self, examples: Dataset, argument: str, seed: int) -> Ints:
        """Return the numbers of the programs that were among the first trials of their group.

        Parameters
        ----------
        examples : Dataset
            Programs to choose from.
        argument : str
            Number of trials; :data:`FIRST_TRIALS` if empty.
        seed : int
            Not used.

        Raises
        ------
        UsageError
            The argument is no positive number.
        """
        most = _number(self.name, argument, FIRST_TRIALS)
        return np.flatnonzero(examples.trials < most)


class ByOrigin:
    """Programs by origin: ``origin:random,mutated``."""

    name = "origin"

    def choose(self, examples: Dataset, argument: str, seed: int) -> Ints:
        """Return the numbers of the programs with one of some origins.

        Parameters
        ----------
        examples : Dataset
            Programs to choose from.
        argument : str
            Names of :class:`~tunedb.records.Origin` with commas between them; Ansor's three sources
            (random, mutated, measured) if empty.
        seed : int
            Not used.

        Raises
        ------
        UsageError
            A name is unknown, or no program is of these origins.
        """
        number_of = {origin.value: number for number, origin in enumerate(ORIGINS)}
        names = (
            [origin_name.strip() for origin_name in argument.split(",")]
            if argument
            else [*_SOURCES]
        )
        for name in names:
            if name not in number_of:
                raise UsageError(f"no origin {name!r}; there are: {', '.join(number_of)}")
        chosen = np.flatnonzero(np.isin(examples.origins, [number_of[name] for name in names]))
        if not len(chosen):
            present = ", ".join(ORIGINS[number].value for number in np.unique(examples.origins))
            raise UsageError(
                f"no program has the origin {', '.join(names)}; there are: {present or 'none'}"
            )
        return chosen


class Diverse:
    """A given number of programs, spread over groups, throughput and failure: ``diverse:2000``."""

    name = "diverse"

    def choose(self, examples: Dataset, argument: str, seed: int) -> Ints:
        """Return the numbers of programs of all groups, slow, fast and failed ones.

        Groups get equal numbers of places, and so do the strata of a group: the failures, and the
        other programs by eight levels of throughput. If a stratum or a group has too few programs,
        its places go to the others. The choice is among the first 128 trials of each group; if all
        groups together have too few of them, among the first 256, 512, and so on.

        Parameters
        ----------
        examples : Dataset
            Programs to choose from; all, if they are fewer than the number.
        argument : str
            Number of programs; :data:`DIVERSE_PROGRAMS` if empty.
        seed : int
            Seed of the draw inside a stratum.

        Raises
        ------
        UsageError
            The argument is no positive number.
        """
        most = _number(self.name, argument, DIVERSE_PROGRAMS)
        if most >= len(examples):
            return np.arange(len(examples))
        early = _early(examples.trials, most)
        draw = np.random.default_rng(seed).permutation(len(early))
        group = examples.group[early].astype(np.int64)
        level = np.minimum(np.sqrt(examples.throughput[early]) * _LEVELS, _LEVELS - 1)
        stratum = np.where(examples.failed[early], _LEVELS, level.astype(np.int64))
        # The n-th of each stratum before any (n + 1)-th, and so with the groups: an empty stratum
        # or group leaves its places to the others.
        turn = _turns(group * (_LEVELS + 1) + stratum, draw)
        turn = _turns(group, turn * len(early) + draw)
        return np.sort(early[np.lexsort((draw, turn))[:most]])


def _number(name: str, argument: str, default: int) -> int:
    """Return a part's argument as a positive number."""
    if not argument:
        return default
    if not (argument.isascii() and argument.isdecimal() and 0 < len(argument) < 10):
        raise UsageError(f"training set '{name}:N' takes a number of programs, got {argument!r}")
    if int(argument) == 0:
        raise UsageError(f"training set '{name}:0' leaves no program to train on; give a number")
    return int(argument)


def _early(trials: NDArray[np.int32], most: int) -> Ints:
    """Return the numbers of the programs of early trials, at least `most`."""
    span = _EARLY_TRIALS
    while (early := np.flatnonzero(trials < span)).size < most:
        span *= 2
    return early


def _turns(kind: Ints, key: Ints) -> Ints:
    """Return the rank of each item within its kind, from 0, in the order of a key, shape (n,)."""
    order = np.lexsort((key, kind))
    ordered = kind[order]
    begins = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    turns = np.empty(len(order), np.int64)
    turns[order] = np.arange(len(order)) - np.repeat(begins, np.diff(np.append(begins, len(order))))
    return turns


ALL = All()
DIVERSE = Diverse()
FIRST = First()
ORIGIN = ByOrigin()

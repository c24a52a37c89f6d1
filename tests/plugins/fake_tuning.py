"""tune() without compiling or measuring, with a search of few programs."""

from contextlib import closing

from fake_measuring import FakeBuilder, FakeRunner, seeded_model
from matmuls import llvm

from tunedb.plugins.metaschedule.search.strategy import EvolutionarySearch
from tunedb.plugins.metaschedule.tuning.tune import tune


def tune_quickly(mod, database, **options):
    """Tune for a processor with two cores; options go to tune()."""
    with closing(FakeBuilder()) as builder:
        defaults = {
            **{"target": llvm, "database": database, "seed": 1, "num_tuning_cores": 1},
            **{"builder": builder, "runner": FakeRunner(scale=1e-4), "cost_model": seeded_model()},
            "strategy": EvolutionarySearch(
                database, population_size=8, generations=0, rank_drafts=False
            ),
        }
        return tune(mod, **(defaults | options))

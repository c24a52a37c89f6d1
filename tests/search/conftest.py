"""Small traces written by hand, as MetaSchedule's rules for CPUs and GPUs make them."""

from types import SimpleNamespace

import pytest

from tunedb.programs.metaschedule.trace import split_trace
from tunedb.search.draft import Draft


class _Maker:
    """Writes a trace as TVM numbers it."""

    def __init__(self):
        self.instructions = []
        self.decisions = []
        self.variables = 0

    def add(self, kind, inputs=(), attrs=(), outputs="", decision=None):
        """Add an instruction; `outputs` has a letter for each: ``bll``."""
        if decision is not None:
            self.decisions.append([len(self.instructions), decision])
        names = [f"{letter}{self.variables + i}" for i, letter in enumerate(outputs)]
        self.variables += len(names)
        self.instructions.append([kind, list(inputs), list(attrs), names])
        return names

    def block(self, name):
        return self.add("GetSBlock", (), [name, "main"], "b")[0]

    def tile(self, loop, factors, most=64):
        n = len(factors)
        sampled = self.add("SamplePerfectTile", [loop], [n, most], "v" * n, list(factors))
        return self.add("Split", [loop, *sampled], [1, 0], "l" * n)

    def category(self, choices, decision):
        attributes = [choices, [1 / len(choices)] * len(choices)]
        return self.add("SampleCategorical", (), attributes, "v", decision)[0]

    def annotate(self, block, key, choices, decision):
        """Annotate a block with a drawn number."""
        value = self.category(choices, decision)
        self.add("Annotate", [block, value], [f"meta_schedule.{key}"])

    def root(self, block, parallel, unroll):
        self.add("Annotate", [block, parallel], ["meta_schedule.parallel"])
        self.annotate(block, "unroll_explicit", [0, 16, 64, 512], unroll)

    def location(self, block, place):
        loop = self.add("SampleComputeLocation", [block], (), "l", place)[0]
        self.add("ComputeAt", [block, loop], [1, -1])

    def draft(self):
        return Draft.from_trace(split_trace(self.instructions, self.decisions))


def _matmul(i=(4, 4, 2, 2), j=(1, 8, 1, 8), k=(16, 4), *, unroll=0, parallel=64, cached=False):
    """A tiled matmul, with a cache stage of its output where `cached`."""
    made = _Maker()
    block, root = made.block("C"), made.block("root")
    loops = made.add("GetLoops", [block], (), "lll")
    rows, columns, reduced = (
        made.tile(loop, tile) for loop, tile in zip(loops, (i, j, k), strict=True)
    )
    made.add("Reorder", [*rows[:2], *columns[:2], *reduced, *rows[2:], *columns[2:]])
    if cached:
        copy = made.add("CacheWrite", [block, []], [0, "global"], "b")[0]
        made.add("ReverseComputeAt", [copy, columns[1]], [1, -1])
    made.root(root, parallel, unroll)
    return made.draft()


def _conv(i=(4, 4), *, place=2, unroll=0):
    """A padding that is computed somewhere in a tiled convolution."""
    made = _Maker()
    padding, conv, root = made.block("pad"), made.block("conv"), made.block("root")
    made.tile(made.add("GetLoops", [conv], (), "l")[0], i)
    made.root(root, 64, unroll)
    made.location(padding, place)
    return made.draft()


def _softmax(largest=None, total=None, *, unroll=0, parallel=64, places=(0, 0)):
    """Two reductions; each is factored by a tile, or not where it is None."""
    made = _Maker()
    blocks = [made.block("max"), made.block("sum")]
    root = made.block("root")
    for block, tile in zip(blocks, (largest, total), strict=True):
        if tile is not None:
            inner = made.add("GetLoops", [block], (), "ll")[1]
            outer = made.tile(inner, tile)[0]
            made.add("RFactor", [outer], [1], "b")
            made.add("Annotate", [block, 1], ["meta_schedule.random_compute_producer"])
    made.root(root, parallel, unroll)
    for block, tile, place in zip(blocks, (largest, total), places, strict=True):
        if tile is not None:
            factored = made.add("GetProducers", [block], (), "b")[0]
            made.add("Unannotate", [block], ["meta_schedule.random_compute_producer"])
            made.location(factored, place)
        made.location(block, place)
    return made.draft()


def _gpu(threads=2, fetch=0, tile=(8, 8)):
    """A stage whose fused loop is split by a number of threads, and a cooperative fetch."""
    made = _Maker()
    block, copy = made.block("C"), made.block("A_shared")
    loops = made.add("GetLoops", [block], (), "ll")
    made.tile(loops[1], tile)
    extent = made.category([32, 64, 128, 256], threads)
    outer, inner = made.add("Split", [loops[0], "None", extent], [1, 0], "ll")
    made.add("Bind", [outer], ["blockIdx.x"])
    made.add("Bind", [inner], ["threadIdx.x"])
    made.annotate(copy, "cooperative_fetch", [1, 2, 3, 4], fetch)
    return made.draft()


@pytest.fixture(scope="session")
def traces():
    """Makers of drafts: ``matmul``, ``conv``, ``softmax``, ``gpu``, and ``Maker`` for others."""
    return SimpleNamespace(matmul=_matmul, conv=_conv, softmax=_softmax, gpu=_gpu, Maker=_Maker)

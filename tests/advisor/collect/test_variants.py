import json
import math
import shlex
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb import limits
from tunedb.advisor.collect.configuration import GPU, Configuration, ProfilerConfig, ProgramConfig
from tunedb.advisor.collect.plan import choose_profiler, make_plan
from tunedb.advisor.collect.runs import command_for
from tunedb.advisor.collect.variants import Variant, illegal_reason, make_variants
from tunedb.errors import LimitError, NotFoundError, UsageError

K40 = GPU("Tesla K40c", 0, "3.5")


def program(block, **more):
    return ProgramConfig(name="p", run=("./p", "{block_x}"), block=block, **more)


def blocks(made):
    return [variant.block for variant in made[0]]


def test_variants_of_one_dimension_are_the_original_and_powers_of_two_of_whole_warps():
    made = blocks(make_variants(program((256,)), K40))
    assert made == [(n, 1, 1) for n in (256, 32, 64, 128, 512, 1024)]
    assert blocks(make_variants(program((100,)), K40))[:2] == [(100, 1, 1), (32, 1, 1)]


@pytest.mark.parametrize("dimensions", [2, 3])
def test_variants_keep_the_dimensions_of_the_original(dimensions):
    original = (8,) * dimensions
    made, refused = make_variants(program(original), K40)
    found = [variant.block for variant in made]
    assert not refused
    assert len(set(found)) == len(found) > 20
    for block in found:
        assert all(extent >= 2 for extent in block[:dimensions])
        assert block[dimensions:] == (1,) * (3 - dimensions)
        assert 32 <= math.prod(block) <= 1024
        assert math.prod(block) % 32 == 0
        assert block[2] <= 64
    if dimensions == 2:
        # 4 + 5 + … + 9 shapes of 32 to 1,024 threads.
        assert len(found) == 39


def test_configured_sizes_are_combined_and_illegal_blocks_reported():
    made, refused = make_variants(program((16, 16), sizes={"x": (8, 64), "y": (5, 32)}), K40)
    assert sorted(v.block for v in made) == [(8, 5, 1), (8, 32, 1), (16, 16, 1), (64, 5, 1)]
    reason = "2048 threads; the device takes 1024"
    assert [(r.block, r.reason) for r in refused] == [((64, 32, 1), reason)]
    # An axis without configured sizes gets powers of two.
    made = blocks(make_variants(program((16, 16), sizes={"y": (16,)}), K40))
    assert {block[1] for block in made} == {16}
    assert {block[0] for block in made} == {2, 4, 8, 16, 32, 64}


def test_illegal_reason_names_the_exceeded_limit():
    assert illegal_reason((1024, 1, 1), K40) is illegal_reason((1, 1, 64), K40) is None
    assert illegal_reason((2048, 1, 1), K40) == "2048 threads; the device takes 1024"
    assert illegal_reason((2, 2, 128), K40) == "128 along z; the device takes 64"


def test_variants_of_each_input_and_limit_begin_with_the_original():
    one = program((64,), blocks=((64,), (32,)), registers=("default", 32), inputs=("a", "b"))
    made, _ = make_variants(one, K40)
    assert [(v.input, v.registers, v.threads, v.original) for v in made] == [
        (word, limit, threads, threads == 64)
        for word in "ab"
        for limit in (None, 32)
        for threads in (64, 32)
    ]
    labels = ["64x1x1 a", "32x1x1 a", "64x1x1 r32 a", "32x1x1 r32 a"]
    assert [v.label for v in made[:4]] == labels


NASTY = "$(touch x) `ls` ; \"'\\ *"


def test_command_for_inserts_values_as_they_are():
    variant = Variant("p", (32, 4, 2), 64, NASTY)
    command = ("./p", "-x={block_x},{block_y}", "{block_z}", "{threads}", "{input}", "{{x}}")
    assert command_for(command, variant) == ("./p", "-x=32,4", "2", "256", NASTY, "{{x}}")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20))
def test_command_for_quotes_values_for_the_shell(value):
    command = command_for("printf %s {input} {block_x}", Variant("p", (7, 1, 1), None, value))
    assert command[:2] == ("/bin/sh", "-c")
    assert shlex.split(command[2]) == ["printf", "%s", value, "7"]


def test_shell_does_not_execute_values(tmp_path):
    command = command_for("printf %s {input}", Variant("p", (1, 1, 1), None, NASTY))
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == NASTY
    assert list(tmp_path.iterdir()) == []


def test_placeholders_in_values_are_not_replaced():
    variant = Variant("p", (32, 1, 1), None, "{block_x}")
    assert command_for(("{input}",), variant) == ("{block_x}",)
    assert command_for("echo {input} ${block_x}", variant)[2] == "echo '{block_x}' ${block_x}"


@pytest.mark.parametrize(("limit", "flag"), [(None, []), (32, ["-maxrregcount=32"])])
def test_register_flag_is_left_out_without_a_limit(limit, flag):
    variant = Variant("p", (32, 1, 1), limit)
    expected = ("nvcc", *flag, "x.cu")
    assert command_for(("nvcc", "{register_flag}", "x.cu"), variant) == expected
    assert command_for(("nvcc", "-maxrregcount={maxrregcount}", "x.cu"), variant) == expected
    assert shlex.split(command_for("nvcc {register_flag} x.cu", variant)[2]) == [*expected]


def plan(*programs, tool="none", device=K40, profiler=None, **more):
    profiler = profiler or ProfilerConfig()
    configuration = Configuration(devices=(device,), programs=programs, profiler=profiler)
    return make_plan(configuration, tool=tool, **more)


def test_plan_counts_the_runs_of_a_variant():
    made = plan(program((64,), blocks=((64,), (32,))), tool="nvprof")
    original, other = made.variants
    # Two and one for the output, five for the time, one trace, and a run for each group.
    assert made.runs(original) == 2 + 5 + 1 + len(made.groups)
    assert made.runs(other) == 1 + 5 + 1 + len(made.groups)


def test_plan_can_be_written_as_json():
    report = json.loads(json.dumps(plan(program((64,), blocks=((64,), (2048,)))).to_json()))
    assert report["device"] == {"name": "Tesla K40c", "index": 0, "compute_capability": "3.5"}
    assert [(v["block"], v["runs"]) for v in report["variants"]] == [([64, 1, 1], 7)]
    assert report["refused"][0]["reason"] == "2048 threads; the device takes 1024"


def test_make_plan_rejects_missing_programs_or_devices_and_illegal_originals():
    with pytest.raises(UsageError, match="no program is configured"):
        plan()
    with pytest.raises(UsageError, match="no device is configured; name one with --device"):
        make_plan(Configuration(programs=(program((64,)),)), tool="none")
    with pytest.raises(NotFoundError, match="program 'q' is not configured; there is: p"):
        plan(program((64,)), programs=["q"])
    with pytest.raises(UsageError, match=r"programs\.p\.block: 2048 threads; the device takes"):
        plan(program((2048,)))


def test_make_plan_rejects_too_many_variants(monkeypatch):
    monkeypatch.setattr(limits, "MAX_VARIANTS", 5)
    plan(program((64,), blocks=tuple((32 * n,) for n in range(1, 6))))
    with pytest.raises(LimitError, match=r"more than 5 variants up to programs\.p"):
        plan(program((64,), blocks=tuple((32 * n,) for n in range(1, 7))))


def test_compute_capability_determines_the_profiler():
    tools = {"3.5": "nvprof", "6.1": "nvprof", "7.0": "ncu", "12.0": "ncu"}
    for capability, tool in tools.items():
        device = GPU("x", 0, capability)
        assert choose_profiler("auto", device).name == tool
        assert plan(program((64,)), tool=None, device=device).tool == tool
        assert choose_profiler("none", device) is None
    for tool, capability in (("ncu", "3.5"), ("nvprof", "8.0")):
        with pytest.raises(UsageError, match=f"{tool} reads no counters on compute capability"):
            plan(program((64,)), tool=tool, device=GPU("x", 0, capability))


def test_plan_reads_only_configured_counters():
    profiler = ProfilerConfig("nvprof", ("a", "b"), 1)
    assert plan(program((64,)), tool=None, profiler=profiler).groups == (("a",), ("b",))

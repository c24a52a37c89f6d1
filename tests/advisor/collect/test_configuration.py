"""The TOML file: what is written is what is read, and errors name file and key."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from raising import raises_line

from tunedb import limits
from tunedb.advisor.collect import configuration as parts
from tunedb.advisor.collect.configuration import (
    GPU,
    Configuration,
    EnvironmentConfig,
    OutputConfig,
    ProfilerConfig,
    ProgramConfig,
    TimingConfig,
    parse,
    read,
    render,
    write,
)
from tunedb.errors import FormatError, NotFoundError

texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0{}"), min_size=1, max_size=12
)
names = st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,8}", fullmatch=True)
seconds = st.floats(0.001, 1e6)


@st.composite
def programs(draw):
    block = tuple(draw(st.lists(st.integers(1, 1024), min_size=1, max_size=3)))
    words = [*draw(st.lists(texts, max_size=3)), "{block_x}", "{block_y}-{block_z}", "{input}"]
    shell = draw(st.booleans())
    sizes = {
        axis: tuple(sorted(draw(st.sets(st.integers(1, 1024), min_size=1, max_size=3))))
        for axis in parts.AXES[: len(block)]
        if draw(st.booleans())
    }
    limits_ = sorted(draw(st.sets(st.integers(1, 255), max_size=3)))
    one = st.tuples(*[st.integers(1, 64)] * len(block))
    blocks = tuple(dict.fromkeys(draw(st.lists(one, max_size=3))))
    timing = st.builds(
        TimingConfig,
        st.sampled_from(parts.TIMINGS),
        st.just("time: (.*) \\s"),
        st.sampled_from(sorted(parts.UNITS)),
        st.integers(1, 100),
    )
    output = st.builds(
        OutputConfig,
        st.sampled_from(["stdout", "none", "out/file.bin"]),
        st.sampled_from(parts.OUTPUT_TYPES),
        st.floats(0, 1),
        st.none() | st.just("^#"),
    )
    return ProgramConfig(
        name=draw(names),
        directory=draw(texts),
        run=" ".join(words) if shell else tuple(words),
        build=draw(st.none() | st.just(("nvcc", "{register_flag}")) | st.just("make {threads}")),
        block=block,
        kernel=draw(st.none() | texts),
        sizes={} if blocks else sizes,
        blocks=blocks,
        registers=("default",),
        inputs=tuple(dict.fromkeys(draw(st.lists(texts, min_size=1, max_size=3)))),
        output=draw(output),
        timing=draw(timing),
        timeout=draw(seconds),
        build_timeout=draw(seconds),
    ), limits_


@st.composite
def configurations(draw):
    made = []
    for program, limits_ in draw(st.lists(programs(), max_size=2, unique_by=lambda p: p[0].name)):
        if program.build == ("nvcc", "{register_flag}"):
            program = replace(program, registers=("default", *limits_))
        made.append(program)
    capability = st.none() | st.sampled_from(["3.5", "12.0"])
    return Configuration(
        environment=EnvironmentConfig(
            tuple(draw(st.lists(texts, max_size=2))),
            draw(st.dictionaries(texts.filter(lambda t: "=" not in t), texts, max_size=2)),
        ),
        devices=tuple(
            draw(st.lists(st.builds(GPU, texts, st.integers(0, 7), capability), max_size=2))
        ),
        profiler=ProfilerConfig(
            draw(st.sampled_from(["auto", "ncu", "nvprof", "none"])),
            tuple(dict.fromkeys(draw(st.lists(texts, max_size=2)))),
            draw(st.integers(0, 9)),
            tuple(draw(st.lists(texts, max_size=2))),
        ),
        programs=tuple(made),
    )


@given(configurations())
def test_parse_restores_rendered_configurations(configuration):
    assert parse(render(configuration).encode(), "x") == configuration


MINIMAL = """
[[programs]]
name = "mm"
run = ["./mm", "{block_x}", "{block_y}"]
block = [16, 16]
"""


def test_minimal_program_has_the_documented_defaults():
    (program,) = parse(MINIMAL.encode(), "x").programs
    assert (program.register_limits, program.inputs, program.original) == ((None,), (), (16, 16, 1))
    assert (program.output.source, program.timing.source) == ("stdout", "wall")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mm"', "", "x.toml: programs.1.name: missing"),
        ('name = "mm"', 'name = "../mm"', "x.toml: programs.../mm.name: expected a word of"),
        ("[16, 16]", "[16, 0]", r"programs.mm.block\[1\]: expected `int` >= 1"),
        ("[16, 16]", "16", "programs.mm.block: expected `array`, got `int`"),
        ("[16, 16]", "[1, 1, 1, 1]", "programs.mm.block: expected `array` of length <= 3"),
        ("[16, 16]", "[16, true]", r"programs.mm.block\[1\]: expected `int`, got `bool`"),
        ('"{block_y}"', '"{block_q}"', "programs.mm.run: .*{block_q} is none of {block_x}, "),
        (', "{block_y}"', "", "programs.mm.run: neither build nor run holds {block_y}"),
        ("[16, 16]", '[16, 16]\nregisters = [32]', "programs.mm.registers: neither build"),
        ("[16, 16]", '[16, 16]\nregisters = [0]', r"registers\[0\]: expected `int` >= 1"),
        ("[16, 16]", '[16, 16]\ninputs = ["1"]', "programs.mm.inputs: neither build nor run"),
        ("[16, 16]", "[16, 16]\nblocks = [[8]]", r"programs.mm.blocks: .*has 2 of x, y, z"),
        ("[16, 16]", "[16, 16]\ntimeout = 0", "programs.mm.timeout: expected `float` >= 0.001"),
        ("[16, 16]", "[16, 16]\ntimeout = nan", "programs.mm.timeout: expected `float` >= 0.001"),
        ("[16, 16]", "[16, 16]\ntimeuot = 1", "x.toml: programs.mm.timeuot: no such key"),
        ("[16, 16]", "[16, 16]\nsizes = {z = [1]}", "programs.mm.sizes.z: no such key"),
        ("[16, 16]", "[16, 16]\noutput = 3", "x.toml: programs.mm.output: expected a table"),
        ("[16, 16]", '[16, 16]\noutput.from = "/etc/passwd"', "output.from: expected a file"),
        ("[16, 16]", '[16, 16]\noutput.from = "../x"', "programs.mm.output.from: expected a file"),
        ("[16, 16]", '[16, 16]\noutput.ignore = "("', "mm.output.ignore: expected a regular"),
        ("[16, 16]", '[16, 16]\ntiming.from = "output"', "programs.mm.timing.pattern: missing"),
        ("[16, 16]", '[16, 16]\ntiming.pattern = "ms"', "timing.pattern: .*parentheses"),
        ("[16, 16]", '[16, 16]\ntiming.unit = "min"', "timing.unit: expected one of s, ms, us, ns"),
        ("[[programs]]", "[programs]", r"x.toml: programs: write it as \[\[programs\]\]"),
        ("[[programs]]", "more = 1\n[[programs]]", "x.toml: more: no such key"),
        ("[[programs]]", 'environment.path = "x"\n[[programs]]', "path: expected `array`"),
        ("[[programs]]", "environment.variables = {A = 1}\n[[programs]]", "variables: expected"),
        ("[[programs]]", 'environment.variables = {"A=B" = ""}\n[[programs]]',
         "environment.variables: expected the name of a variable"),
        ("[16, 16]", '[16, 16]\nregisters = ["all"]', r"registers\[0\]: expected one of default"),
        ("[16, 16]", "[16, 16]\nsizes = {w = [1]}", "mm.sizes: expected one of x, y, z"),
        ("[16, 16]", '[16, 16]\noutput.type = "int"', "output.type: expected one of text, bytes,"),
        ("[16, 16]", '[16, 16]\nkernel = "a\\u0000"', "mm.kernel: expected a text without NUL"),
        ("[[programs]]", 'profiler.tool = "perf"\n[[programs]]', "tool: expected one of auto, ncu"),
        ("[[programs]]", '[[devices]]\nname = "x"\ncompute_capability = "new"\n[[programs]]',
         "devices.x.compute_capability: expected a text such as"),
        ("[[programs]]", "[[programs]", "x.toml: not TOML: "),
    ],
)  # fmt: skip
def test_errors_name_file_and_key(old, new, message):
    assert old in MINIMAL
    with raises_line(FormatError, match=message) as error:
        parse(MINIMAL.replace(old, new).encode(), "x.toml")
    assert str(error.value).startswith("x.toml: ")


def test_parse_rejects_two_programs_of_one_name():
    again = MINIMAL + MINIMAL.replace('"mm"', '"MM"')
    with pytest.raises(FormatError, match="x: programs: two have the name 'MM'"):
        parse(again.encode(), "x")


def test_parse_rejects_maxrregcount_in_lines_for_the_shell():
    """A word with {maxrregcount} is left out without a limit, but a line has no words."""
    shell = MINIMAL.replace('["./mm", "{block_x}", "{block_y}"]', '"mm {block_x} {block_y} REG"')
    parse(shell.replace("REG", "{register_flag} ${shell_variable}").encode(), "x")
    with pytest.raises(FormatError, match=r"in a line for the shell write \{register_flag\}"):
        parse(shell.replace("REG", "{maxrregcount}").encode(), "x")


def test_a_fixed_axis_needs_no_placeholder():
    fixed = MINIMAL.replace(', "{block_y}"', "") + "sizes = {y = [16]}\n"
    assert parse(fixed.encode(), "x").programs[0].sizes == {"y": (16,)}


def test_register_limits_always_begin_with_the_default():
    text = MINIMAL.replace('"./mm"', '"./mm", "{register_flag}"') + "registers = [64, 32, 64]\n"
    assert parse(text.encode(), "x").programs[0].register_limits == (None, 32, 64)


def test_parse_rejects_too_large_extents():
    """MAX_BLOCK_EXTENT"""
    most = limits.MAX_BLOCK_EXTENT
    parse(MINIMAL.replace("[16, 16]", f"[{most}, 1]").encode(), "x")
    with pytest.raises(FormatError, match=r"programs\.mm\.block"):
        parse(MINIMAL.replace("[16, 16]", f"[{most + 1}, 1]").encode(), "x")


def test_read_rejects_long_files(tmp_path):
    """MAX_CONFIGURATION_BYTES"""
    path = tmp_path / "x.toml"
    path.write_text(MINIMAL + "#" * (limits.MAX_CONFIGURATION_BYTES - len(MINIMAL)))
    assert read(path).programs
    path.write_text(path.read_text() + "#")
    with pytest.raises(FormatError, match="longer than 1048576 bytes"):
        read(path)


def test_error_about_missing_file_names_the_configure_command(tmp_path):
    with pytest.raises(NotFoundError, match="no such file; write it with: tunedb advise configure"):
        read(tmp_path / "none.toml")


def test_write_backs_up_the_old_file(tmp_path):
    path = tmp_path / "advise.toml"
    path.write_text("# by hand\n" + MINIMAL)
    configuration = read(path)
    assert write(path, configuration)
    assert path.with_name("advise.toml.bak").read_text() == "# by hand\n" + MINIMAL
    assert read(path) == configuration
    assert not write(path, configuration)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["advise.toml", "advise.toml.bak"]


def test_write_rejects_unreadable_configurations(tmp_path):
    path = tmp_path / "advise.toml"
    bad = Configuration(programs=(ProgramConfig(name="mm", run=("./mm",), block=(256,)),))
    with pytest.raises(FormatError, match=r"neither build nor run holds \{block_x\}"):
        write(path, bad)
    with pytest.raises(FormatError, match="not text of Unicode"):
        write(path, Configuration(devices=(GPU("a\udcff"),)))
    assert list(Path(tmp_path).iterdir()) == []

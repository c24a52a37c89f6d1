import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from tunedb.errors import FormatError

texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0{}"), min_size=1, max_size=12
)
names = st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,8}", fullmatch=True)
seconds = st.floats(0.001, 1e6)


@st.composite
def programs(draw):
    block = tuple(draw(st.lists(st.integers(1, 1024), min_size=1, max_size=3)))
    words = [*draw(st.lists(texts, max_size=3)), "{block_x}", "{block_y}-{block_z}", "{input}"]
    sizes = {
        axis: tuple(sorted(draw(st.sets(st.integers(1, 1024), min_size=1, max_size=3))))
        for axis in parts.AXES[: len(block)]
        if draw(st.booleans())
    }
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
    build = draw(st.none() | st.just(("nvcc", "{register_flag}")) | st.just("make {threads}"))
    can_limit = isinstance(build, tuple)
    registers = draw(st.sets(st.integers(1, 255), max_size=3)) if can_limit else ()
    return ProgramConfig(
        name=draw(names),
        directory=draw(texts),
        run=" ".join(words) if draw(st.booleans()) else tuple(words),
        build=build,
        block=block,
        kernel=draw(st.none() | texts),
        sizes={} if blocks else sizes,
        blocks=blocks,
        registers=("default", *sorted(registers)),
        inputs=tuple(dict.fromkeys(draw(st.lists(texts, min_size=1, max_size=3)))),
        output=draw(output),
        timing=draw(timing),
        timeout=draw(seconds),
        build_timeout=draw(seconds),
    )


pairs = st.lists(texts, max_size=2).map(tuple)
variables = st.dictionaries(texts.filter(lambda text: "=" not in text), texts, max_size=2)
capabilities = st.none() | st.sampled_from(["3.5", "12.0"])
configurations = st.builds(
    Configuration,
    environment=st.builds(EnvironmentConfig, pairs, variables),
    devices=st.lists(st.builds(GPU, texts, st.integers(0, 7), capabilities), max_size=2).map(tuple),
    profiler=st.builds(
        ProfilerConfig,
        st.sampled_from(["auto", "ncu", "nvprof", "none"]),
        st.lists(texts, max_size=2, unique=True).map(tuple),
        st.integers(0, 9),
        pairs,
    ),
    programs=st.lists(programs(), max_size=2, unique_by=lambda one: one.name).map(tuple),
)


@given(configurations)
def test_parse_restores_rendered_configurations(configuration):
    assert parse(render(configuration).encode(), "x") == configuration


MINIMAL = """
[[programs]]
name = "mm"
run = ["./mm", "{block_x}", "{block_y}"]
block = [16, 16]
"""


def parse_program(text):
    """Return the only program of a configuration."""
    (program,) = parse(text.encode(), "x").programs
    return program


def test_minimal_program_has_the_documented_defaults():
    program = parse_program(MINIMAL)
    assert (program.register_limits, program.inputs, program.original) == ((None,), (), (16, 16, 1))
    assert (program.output.source, program.timing.source) == ("stdout", "wall")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mm"', "", "x.toml: programs.1.name: missing"),
        ('name = "mm"', 'name = "../mm"', "x.toml: programs.../mm.name: expected a word of"),
        ("[16, 16]", "[16, 0]", r"programs.mm.block\[1\]: expected `int` >= 1"),
        ("[16, 16]", "[1, 1, 1, 1]", "programs.mm.block: expected `array` of length <= 3"),
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
    with pytest.raises(FormatError, match="x: programs: two have the name 'MM'"):
        parse_program(MINIMAL + MINIMAL.replace('"mm"', '"MM"'))


def test_parse_rejects_maxrregcount_in_lines_for_the_shell():
    """A word with {maxrregcount} is left out without a limit, but a line has no words."""
    shell = MINIMAL.replace('["./mm", "{block_x}", "{block_y}"]', '"mm {block_x} {block_y} REG"')
    parse_program(shell.replace("REG", "{register_flag} ${shell_variable}"))
    with pytest.raises(FormatError, match=r"in a line for the shell write \{register_flag\}"):
        parse_program(shell.replace("REG", "{maxrregcount}"))


def test_a_fixed_axis_needs_no_placeholder():
    fixed = MINIMAL.replace(', "{block_y}"', "") + "sizes = {y = [16]}\n"
    assert parse_program(fixed).sizes == {"y": (16,)}


def test_register_limits_always_begin_with_the_default():
    text = MINIMAL.replace('"./mm"', '"./mm", "{register_flag}"') + "registers = [64, 32, 64]\n"
    assert parse_program(text).register_limits == (None, 32, 64)


def test_parse_rejects_too_large_extents():
    most = limits.MAX_BLOCK_EXTENT
    parse_program(MINIMAL.replace("[16, 16]", f"[{most}, 1]"))
    with pytest.raises(FormatError, match=r"programs\.mm\.block"):
        parse_program(MINIMAL.replace("[16, 16]", f"[{most + 1}, 1]"))


def test_read_rejects_long_files(tmp_path):
    path = tmp_path / "x.toml"
    path.write_text(MINIMAL + "#" * (limits.MAX_CONFIGURATION_BYTES - len(MINIMAL)))
    assert read(path).programs
    path.write_text(path.read_text() + "#")
    with pytest.raises(FormatError, match="longer than 1048576 bytes"):
        read(path)


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
    assert list(tmp_path.iterdir()) == []

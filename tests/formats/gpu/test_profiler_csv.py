import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.errors import FormatError
from tunedb.formats.gpu import profiler_tables as tables
from tunedb.launches import Launch


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("vectorAdd(float const *, float const *, float*, int)", "vectorAdd"),
        ("void matrixMulCUDA<int=32>(float*, float*, float*, int, int)", "matrixMulCUDA"),
        ("void mergeSortSharedKernel<unsigned int=1>(unsigned int*)", "mergeSortSharedKernel"),
        ("void thrust::detail::launch<a::b<c<int>, (int)4>, x>(a::b<c>)", "thrust::detail::launch"),
        ("(anonymous namespace)::k(int)", "(anonymous namespace)::k"),
        ("void (anonymous namespace)::k<3>(int)", "(anonymous namespace)::k"),
        ("f::operator()(int) const", "f::operator()"),
        ("_Z3addPfS_i", "_Z3addPfS_i"),
        ("plain", "plain"),
        ("(int)", "(int)"),
    ],
)
def test_kernel_key_removes_signature_and_template_arguments(name, key):
    assert tables.kernel_key(name) == key


@given(st.text(min_size=1, max_size=60))
def test_kernel_key_returns_nonempty_key_for_any_name(name):
    assert tables.kernel_key(name)
    assert len(tables.kernel_key(name)) <= len(name)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("./vectorAdd_bs256", "vectorAdd"),
        ("./vectorAdd_bs64", "vectorAdd"),
        ("/opt/x/matmul-block32 -n 1024", "matmul -n 1024"),
        ("C:\\cuda\\app_threads_128", "app"),
        ("../../bin/mcx -A -g 10 -n 1e6", "mcx -A -g 10 -n 1e6"),
        ("./conv2d", "conv2d"),
        ("./fft_1024", "fft_1024"),
    ],
)
def test_application_removes_folder_and_block_size_from_command(command, name):
    assert tables.application(command) == name


@pytest.mark.parametrize(
    ("units", "factor", "base"),
    [
        *((("nsecond", "ns"), 1e-9, "second"), (("usecond", "us"), 1e-6, "second")),
        *((("msecond", "ms"), 1e-3, "second"), (("second", "s"), 1.0, "second")),
        *((("Kbyte", "KB"), 1e3, "byte"), (("cycle/nsecond",), 1e9, "cycle/second")),
        (("Gbyte/second", "GB/s", "byte/nsecond"), 1e9, "byte/second"),
        *((("Ghz",), 1e9, "hz"), (("MHz",), 1e6, "hz"), (("Kbyte/block",), 1e3, "byte/block")),
        *(((unit,), 1.0, unit) for unit in ("register/thread", "%", "inst", "", "b")),
    ],
)
def test_base_unit_returns_factor_and_base_unit(units, factor, base):
    for unit in units:
        assert tables.base_unit(unit) == (pytest.approx(factor, rel=1e-12), base)


def test_binary_bytes_uses_factors_of_1024_and_rejects_unknown_units():
    # From real rows: 200,000 bytes are 195.3125 KB, 16 bytes are 0.015625 KB.
    assert [tables.binary_bytes(size, "KB") for size in (195.3125, 0.015625)] == [200_000, 16]
    assert tables.binary_bytes(516, "B") == 516
    for convert, unit in ((tables.binary_bytes, "KiB"), (tables.seconds, "fortnight")):
        with pytest.raises(FormatError):
            convert(1, unit)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_parse_number_reads_printed_numbers_back(value):
    assert tables.parse_number(f"{value:,.6f}") == pytest.approx(value, rel=1e-12, abs=1e-6)
    assert tables.parse_number(repr(value)) == value


@pytest.mark.parametrize("text", ["", "n/a", "nan", "inf", "<OVERFLOW>", "1e999"])
def test_parse_number_returns_nan_for_unmeasured_values(text):
    assert math.isnan(tables.parse_number(text))


@pytest.mark.parametrize("text", ["1.2.3", "1,2", "1_000", "0x10", "١٢", "12,3456", "--1", "1e"])
def test_parse_number_rejects_other_text(text):
    with pytest.raises(FormatError, match="is not a number"):
        tables.parse_number(text)


def locale_of(*texts):
    locale = tables.Locale()
    for text in texts:
        locale.see(text)
    locale.check_seen(1)
    locale.check()


@pytest.mark.parametrize("text", ["1.5", "0.123", "1234.567", "1,234.5", "1,215,000", "12.3456"])
def test_locale_accepts_ambiguous_numbers_beside_an_english_one(text):
    locale_of(text, "117.344", "1,024")


@given(st.lists(st.floats(0, 1e12), min_size=1), st.booleans())
def test_english_numbers_are_accepted_and_german_ones_rejected(values, grouped):
    texts = [f"{value:,.2f}" if grouped else f"{value:.2f}" for value in values]
    locale_of(*texts)
    locale_of(*(f"-{text}" for text in texts))
    swap = str.maketrans(",.", ".,")
    with pytest.raises(FormatError):
        locale_of(*(text.translate(swap) for text in texts))


def test_read_rows_ends_each_row_at_the_end_of_its_line(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_bytes(
        b'\xef\xbb\xbf"a","b,c"\r\n\n==12== hello\n======== Error: signal 2\n"open,1\n2\n'
    )
    rows = [(row.number, row.cells, row.is_chatter) for row in tables.read_rows(path)]
    lines = [(1, ["a", "b,c"], False), (3, [], True), (4, [], True), (5, ["open,1"], False)]
    assert rows == [*lines, (6, ["2"], False)]
    assert tables.parse_row('"' + "x" * 200_000 + '"', 1).cells == []  # too long for a cell
    monkeypatch.setattr("tunedb.limits.MAX_LINE_BYTES", 23)
    with pytest.raises(FormatError, match="line 4: longer than 23 bytes"):
        list(tables.read_rows(path))


def launches_of(block, grid, kernel="k(int)", device=""):
    """Return the launches of a kernel with one block and grid."""
    return tables.KernelLaunches(device, Launch(kernel, tables.threads_of(block), block, grid))


@pytest.mark.parametrize(
    ("one", "other", "are_same"),
    [
        # (block, grid): 50,000 elements in blocks of 64 and of 1,024.
        (((64, 1, 1), (782, 1, 1)), ((1024, 1, 1), (49, 1, 1)), True),
        (((32, 8, 1), (10, 40, 1)), ((8, 32, 1), (40, 10, 1)), True),
        (((32, 8, 1), (10, 40, 1)), ((8, 32, 1), (20, 10, 1)), False),
        # Equal blocks: another size.
        (((64, 1, 1), (782, 1, 1)), ((64, 1, 1), (783, 1, 1)), False),
        # Less than a block apart, and yet another size.
        (((150, 1, 1), (1, 1, 1)), ((34, 1, 1), (1, 1, 1)), False),
        (((512, 1, 1), (4, 1, 1)), ((2, 1, 1), (1, 1, 1)), False),
    ],
)
def test_problems_groups_launches_of_one_problem_size(one, other, are_same):
    found = tables.problems([launches_of(*one), launches_of(*other)])
    assert found == ([(1, 1), (1, 1)] if are_same else [(1, 2), (2, 2)])


@pytest.mark.parametrize(
    ("launches", "expected"),
    [
        (
            [
                ((64, 1, 1), (16, 1, 1), "void run<Add, int=64>(int)"),
                ((128, 1, 1), (8, 1, 1), "void run<Mul, int=128>(int)"),
                ((128, 1, 1), (8, 1, 1), "void run<Add, int=128>(int)"),
            ],
            [(1, 2), (2, 2), (1, 2)],
        ),
        (
            [
                ((64, 1, 1), (16, 1, 1), name, device)
                for name, device in (("a(int)", ""), ("b(int)", ""), ("a(int)", "GTX"))
            ],
            [(1, 1)] * 3,
        ),
    ],
    ids=["functions of one template", "kernels and devices"],
)
def test_problems_separates_functions_kernels_and_devices(launches, expected):
    assert tables.problems([launches_of(*launch) for launch in launches]) == expected


def test_extents_out_of_bounds_are_refused():
    for extents in ((0, 1, 1), (1, 1, 2**31), (-1, 1, 1)):
        with pytest.raises(FormatError):
            tables.check_extents(extents, "grid")
    assert tables.threads_of((1024, 64, 1)) == 65_536
    with pytest.raises(FormatError, match="65537 threads"):
        tables.threads_of((65_537, 1, 1))

"""Tables of GPU profilers: rows, numbers, locales, names of kernels."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunedb.errors import FormatError
from tunedb.formats.gpu.profiler_tables import (
    KernelLaunches,
    Locale,
    application,
    base_unit,
    binary_bytes,
    check_extents,
    kernel_key,
    parse_number,
    parse_row,
    problems,
    read_rows,
    seconds,
    threads_of,
)
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
    assert kernel_key(name) == key


@given(st.text(min_size=1, max_size=60))
def test_kernel_key_returns_nonempty_key_for_any_name(name):
    assert kernel_key(name)
    assert len(kernel_key(name)) <= len(name)


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
    assert application(command) == name


@pytest.mark.parametrize(
    ("unit", "factor", "base"),
    [
        *((unit, 1e-9, "second") for unit in ("nsecond", "ns")),
        *((unit, 1e-6, "second") for unit in ("usecond", "us")),
        *((unit, 1e-3, "second") for unit in ("msecond", "ms")),
        *((unit, 1.0, "second") for unit in ("second", "s")),
        *((unit, 1e3, "byte") for unit in ("Kbyte", "KB")),
        *((unit, 1e9, "byte/second") for unit in ("Gbyte/second", "GB/s", "byte/nsecond")),
        *((unit, 1e9, "cycle/second") for unit in ("cycle/nsecond",)),
        ("Ghz", 1e9, "hz"),
        ("MHz", 1e6, "hz"),
        ("Kbyte/block", 1e3, "byte/block"),
        ("register/thread", 1.0, "register/thread"),
        ("%", 1.0, "%"),
        ("inst", 1.0, "inst"),
        ("", 1.0, ""),
        ("b", 1.0, "b"),
    ],
)
def test_base_unit_returns_factor_and_base_unit(unit, factor, base):
    found, name = base_unit(unit)
    assert found == pytest.approx(factor, rel=1e-12)
    assert name == base


def test_binary_bytes_uses_factors_of_1024_and_rejects_unknown_units():
    # From real rows: 200,000 bytes are 195.3125 KB, 16 bytes are 0.015625 KB.
    assert binary_bytes(195.3125, "KB") == 200_000
    assert binary_bytes(0.015625, "KB") == 16
    assert binary_bytes(3.75, "KB") == 3_840
    assert binary_bytes(516, "B") == 516
    with pytest.raises(FormatError):
        binary_bytes(1, "KiB")
    with pytest.raises(FormatError):
        seconds(1, "fortnight")


@given(st.floats(allow_nan=False, allow_infinity=False, width=32))
def test_parse_number_reads_printed_numbers_back(value):
    assert parse_number(f"{value:,.6f}") == pytest.approx(value, rel=1e-12, abs=1e-6)
    assert parse_number(repr(value)) == value


@pytest.mark.parametrize("text", ["", "n/a", "nan", "inf", "<OVERFLOW>", "1e999"])
def test_parse_number_returns_nan_for_unmeasured_values(text):
    assert math.isnan(parse_number(text))


@pytest.mark.parametrize("text", ["1.2.3", "1,2", "1_000", "0x10", "١٢", "12,3456", "--1", "1e"])
def test_parse_number_rejects_other_text(text):
    with pytest.raises(FormatError, match="is not a number"):
        parse_number(text)


def locale_of(*texts):
    locale = Locale()
    for text in texts:
        locale.see(text)
    locale.check_seen(1)
    locale.check()


@pytest.mark.parametrize("text", ["1.5", "0.123", "1234.567", "1,234.5", "1,215,000", "12.3456"])
def test_locale_accepts_ambiguous_numbers_beside_an_english_one(text):
    locale_of(text, "117.344", "1,024")


@pytest.mark.parametrize(
    "text", ["1,5", "0,123", "1234,567", "1.234,5", "27.595.520", "12,3456", "1 215 000", "1'024"]
)
def test_locale_rejects_numbers_of_other_locales(text):
    with pytest.raises(FormatError, match="another locale"):
        locale_of("1.5", text)


@pytest.mark.parametrize("text", ["117.344", "1,024"])
def test_locale_rejects_ambiguous_numbers(text):
    with pytest.raises(FormatError, match="is ambiguous"):
        locale_of("12", text)


@given(st.lists(st.floats(-1e12, 1e12), min_size=1), st.booleans())
def test_english_numbers_are_accepted(values, grouped):
    locale = Locale()
    for value in values:
        locale.see(f"{value:,.2f}" if grouped else f"{value:.2f}")
    locale.check_seen(1)
    locale.check()


@given(st.lists(st.floats(1, 1e12), min_size=1))
def test_german_numbers_are_refused(values):
    swap = str.maketrans(",.", ".,")
    with pytest.raises(FormatError):
        locale_of(*(f"{value:,.2f}".translate(swap) for value in values))


def test_read_rows_ends_each_row_at_the_end_of_its_line(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes(
        b'\xef\xbb\xbf"a","b,c"\r\n\n==12== hello\n======== Error: signal 2\n"open,1\n2\n'
    )
    rows = list(read_rows(path))
    assert [(row.number, row.cells, row.is_chatter) for row in rows] == [
        (1, ["a", "b,c"], False),
        (3, [], True),
        (4, [], True),
        (5, ["open,1"], False),
        (6, ["2"], False),
    ]


def test_parse_row_returns_no_cells_for_too_long_cell():
    assert parse_row('"' + "x" * 200_000 + '"', 1).cells == []


def test_read_rows_rejects_file_with_too_long_line(tmp_path, monkeypatch):
    monkeypatch.setattr("tunedb.limits.MAX_LINE_BYTES", 10)
    path = tmp_path / "x.csv"
    path.write_text("a,b\n" + "x" * 11 + "\n")
    with pytest.raises(FormatError, match="line 2: longer than 10 bytes"):
        list(read_rows(path))


def launches_of(block, grid, kernel="k(int)", device=""):
    """Return the launches of a kernel with one block and grid."""
    return KernelLaunches(device, Launch(kernel, threads_of(block), block, grid))


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
    found = problems([launches_of(*one), launches_of(*other)])
    assert found == ([(1, 1), (1, 1)] if are_same else [(1, 2), (2, 2)])


def test_problems_separates_functions_of_one_template():
    launches = [
        launches_of((64, 1, 1), (16, 1, 1), "void run<Add, int=64>(int)"),
        launches_of((128, 1, 1), (8, 1, 1), "void run<Mul, int=128>(int)"),
        launches_of((128, 1, 1), (8, 1, 1), "void run<Add, int=128>(int)"),
    ]
    assert problems(launches) == [(1, 2), (2, 2), (1, 2)]


def test_problems_numbers_each_kernel_and_device_separately():
    launches = [
        launches_of((64, 1, 1), (16, 1, 1), "a(int)"),
        launches_of((64, 1, 1), (16, 1, 1), "b(int)"),
        launches_of((64, 1, 1), (16, 1, 1), "a(int)", "GTX"),
    ]
    assert problems(launches) == [(1, 1)] * 3


@pytest.mark.parametrize("extents", [(0, 1, 1), (1, 1, 2**31), (-1, 1, 1)])
def test_extents_out_of_bounds_are_refused(extents):
    with pytest.raises(FormatError):
        check_extents(extents, "grid")


def test_threads_of_rejects_blocks_over_65536_threads():
    assert threads_of((1024, 64, 1)) == 65_536
    with pytest.raises(FormatError, match="65537 threads"):
        threads_of((65_537, 1, 1))

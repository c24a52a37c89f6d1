"""Targets of legacy logs, read leniently."""

import json
import lzma
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_logs import DATA, needs_logs

from tunedb.errors import FormatError
from tunedb.formats.legacy_targets import parse_target
from tunedb.limits import MAX_TARGET_CHARS


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("cuda", {"kind": "cuda"}),
        ("  ext_dev\t", {"kind": "ext_dev"}),
        ("cuda -model=v100", {"kind": "cuda", "model": "v100"}),
        (
            "rocm -keys=rocm,gpu -max_num_threads=256 -mcpu=gfx906",
            {"kind": "rocm", "keys": ["rocm", "gpu"], "max_num_threads": 256, "mcpu": "gfx906"},
        ),
        (
            "llvm -device=arm_cpu -target=armv7l-linux -mattr=+neon",
            {"kind": "llvm", "device": "arm_cpu", "mtriple": "armv7l-linux", "mattr": ["+neon"]},
        ),
        ("llvm -target=a -mtriple=b", {"kind": "llvm", "target": "a", "mtriple": "b"}),
        (
            "c --system-lib --runtime=c -link-params=0",
            {"kind": "c", "system-lib": 1, "runtime": "c", "link-params": 0},
        ),
        ("llvm -mcpu skylake -opt-level 3", {"kind": "llvm", "mcpu": "skylake", "opt-level": 3}),
        ("llvm -mattr=+a,+b -mattr=+c", {"kind": "llvm", "mattr": ["+a", "+b", "+c"]}),
        ("llvm -libs=", {"kind": "llvm", "libs": []}),
        ("llvm -opt=a -opt=2", {"kind": "llvm", "opt": ["a", 2]}),
        # A number stays text where it is a name, or where it would not be written back alike.
        (
            "opencl -model=1080 -a=007 -b=-0 -c=-5 -d=0x1f -e=12345678901234567890",
            {
                **{"kind": "opencl", "model": "1080", "a": "007", "b": "-0", "c": -5, "d": "0x1f"},
                "e": "12345678901234567890",
            },
        ),
        ("llvm -offset -1 -flag -mcpu=x", {"kind": "llvm", "offset": -1, "flag": 1, "mcpu": "x"}),
        ("cuda -libs='cu blas',cudnn", {"kind": "cuda", "libs": ["cu blas", "cudnn"]}),
        ('cuda -host="llvm -mcpu=\\"x\\""', {"kind": "cuda", "host": 'llvm -mcpu="x"'}),
        ("cuda -a=b\\ c -d='e", {"kind": "cuda", "a": "b c", "d": "'e"}),
        ("cuda -key=a=b", {"kind": "cuda", "key": "a=b"}),
        ("nvidia/geforce-rtx-3070", {"kind": "nvidia/geforce-rtx-3070"}),
        ("llvm extra -a=1 words", {"kind": "llvm", "words": ["extra", "words"], "a": 1}),
        ("-mcpu=x", {"kind": "unknown", "mcpu": "x"}),
        ("cuda -kind=opencl", {"kind": "cuda", "-kind": "opencl"}),
        ("cuda - -- -=x", {"kind": "cuda", "words": ["-", "--", "-=x"]}),
        (
            '{"kind": "cuda", "keys": ["gpu"], "host": {"kind": "llvm"}, "x": 1.5}',
            {"kind": "cuda", "keys": ["gpu"], "host": {"kind": "llvm"}, "x": 1.5},
        ),
        ('{"tag": "nvidia/v100"}', {"kind": "unknown", "tag": "nvidia/v100"}),
    ],
)
def test_parse_target_converts_text_to_configuration(text, config):
    target = parse_target(text)
    assert json.loads(target.config) == config
    assert target.kind == config["kind"]
    assert target.text == text


def test_equal_options_in_another_order_are_one_target():
    first = parse_target("opencl -model=rk3399 -device=mali")
    second = parse_target("opencl -device=mali  -model=rk3399")
    assert first.digest == second.digest
    assert first.text != second.text
    assert parse_target("llvm -device=arm_cpu -target=armv7a-linux-eabi").architecture == "armv7a"
    assert parse_target("llvm -keys=cpu -mcpu=core-avx2").architecture == "core-avx2"


@pytest.mark.parametrize(
    "text",
    [
        *("", " \n", "cuda\0", "cuda -model=\0", "cuda -model=\ud800"),
        "x" * (MAX_TARGET_CHARS + 1),
        *('{"kind": ', '{"kind": 1}', '{"kind": ""}', '{"kind": "a\\u0000b"}'),
        *(
            '{"kind": "cuda", "n": ' + value + "}"
            for value in ("9223372036854775808", "[" * 40 + "]" * 40, "[" * 5000 + "]" * 5000)
        ),
    ],
)
def test_parse_target_rejects_invalid_text(text):
    with pytest.raises(FormatError) as caught:
        parse_target(text)
    assert "\n" not in str(caught.value)
    assert parse_target("llvm " + "'" * (MAX_TARGET_CHARS - 5)).kind == "llvm"  # the longest


@given(st.text(alphabet=" -='\"\\,{}:[]akind\u00e9\u2028\n0", max_size=60) | st.text(max_size=40))
def test_any_text_is_a_target_or_a_format_error(text):
    try:
        target = parse_target(text)
    except FormatError:
        return
    assert target.text == text
    assert json.loads(target.config)["kind"] == target.kind


@given(
    st.dictionaries(
        st.text(alphabet="abcxyz_", min_size=1, max_size=8).map("o_".__add__),
        st.text(alphabet="abc XYZ0-9'\"\\=,", min_size=1, max_size=12),
        max_size=5,
    )
)
def test_parse_target_unquotes_options_that_tvm_quoted(options):
    text = "llvm"
    for key, value in options.items():
        escaped = re.sub(r"(['\\])", r"\\\1", value)
        text += f" -{key}='{escaped}'"
    config = json.loads(parse_target(text).config)
    del config["kind"]
    assert {key: str(value) for key, value in config.items()} == options


def real_targets():
    """Return the distinct targets of the real legacy logs."""
    texts = set()
    for folder in ("autotvm", "ansor", "tenset", "costmodel"):
        for path in sorted((DATA / folder).rglob("*")):
            if not path.is_file() or path.suffix == ".tsv":
                continue
            opener = lzma.open if path.suffix == ".xz" else Path.open
            with opener(path, "rb") as stream:
                for line in stream:
                    # The target stands before the long part of every line of these logs.
                    texts.update(re.findall(rb'"((?:[a-z_]+)(?: -[^"\s]+)+)"', line[:4000]))
                    texts.update(re.findall(rb'\["(cuda|llvm)",', line[:4000]))
    return sorted(text.decode() for text in texts)


@needs_logs
@pytest.mark.stress
def test_every_real_target_keeps_its_options():
    texts = real_targets()
    assert len(texts) >= 59
    for text in texts:
        kind, *options = text.split()
        config = json.loads(parse_target(text).config)
        assert config.pop("kind") == kind
        for option in options:
            key, _, value = option.lstrip("-").partition("=")
            found = config.pop("mtriple" if key == "target" else key)
            assert (",".join(found) if isinstance(found, list) else str(found)) == value
        assert not config, text

import os
import socket
import sys
from pathlib import Path

import pytest

from tunedb.errors import NotFoundError
from tunedb.formats import find
from tunedb.formats.base import FileFormat, LineFormat, LogFile
from tunedb.formats.find import find_logs


class Pairs:
    """A format whose files ``x.record`` are read together with ``x.workload``."""

    name = "pairs"

    def matches(self, value):
        return False

    def companions(self, path):
        other = path.with_suffix(".workload")
        return [other] if path.suffix == ".record" and other.exists() else []

    def reader(self, file):
        raise AssertionError("nothing is read")


class Whole:
    name = "whole"

    def matches_file(self, head, path):
        raise AssertionError("nothing is read")

    read_file = matches_file


@pytest.fixture(autouse=True)
def formats(monkeypatch):
    assert isinstance(Pairs(), LineFormat)
    assert isinstance(Whole(), FileFormat)
    monkeypatch.setattr(find, "formats", lambda: {"pairs": Pairs(), "whole": Whole()})


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A function that writes files below a temporary working directory."""
    monkeypatch.chdir(tmp_path)

    def tree(*names, text="{}\n"):
        for name in names:
            path = Path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    return tree


def names(*paths, skipped=None):
    """Return the names of the files that are found; add skipped paths to `skipped`."""
    on_skipped = None if skipped is None else lambda *what: skipped.append(what)
    found = find_logs(paths, on_skipped)
    for file in found:
        assert file.path is None or str(file.path) == str(Path(file.name))
    return [file.name for file in found]


class TestNamed:
    def test_find_logs_returns_named_files_and_pipes_in_given_order(self, tree):
        tree("b.json", "a.json", "a/b.json", "a/.hidden", "notes.md", "SOURCES.tsv")
        tree("empty.log", text="")
        os.mkfifo("pipe")  # as <(zcat log) of bash
        assert names() == []
        assert names(Path("a.json")) == ["a.json"]
        given = ["b.json", "a.json", "a/.hidden", "notes.md", "pipe", "SOURCES.tsv", "empty.log"]
        assert names(*given) == given
        assert names("./a/../a/b.json") == ["./a/../a/b.json"]

    def test_find_logs_returns_each_file_once(self, tree):
        tree("a/b.json")
        Path("link.json").symlink_to("a/b.json")
        os.link("a/b.json", "hard.json")
        assert names("a/b.json", "a/b.json", "./a/b.json", "link.json", "hard.json") == ["a/b.json"]
        assert names("link.json", "a") == ["link.json"]
        assert names("a", "a/b.json", ".") == ["a/b.json"]

    @pytest.mark.parametrize(
        "name", ["gone", "gone/x", "a.json/x", "x" * 5000, "a\0b", "", "broken", "loop"]
    )
    def test_find_logs_raises_not_found_for_missing_paths_and_broken_links(self, tree, name):
        tree("a.json")
        Path("broken").symlink_to("gone")
        Path("loop").symlink_to("loop")
        is_link = name in ("broken", "loop")
        reason = f"{name}: cannot be followed" if is_link else "no such file or directory"
        with pytest.raises(NotFoundError, match=reason):
            find_logs(["a.json", name])

    def test_find_logs_takes_dash_as_standard_input(self, tree):
        tree("a.json", "-")
        assert find_logs(["a.json", "-", "-"])[1:] == [LogFile(None, "<stdin>")]
        assert names("./-", "-") == ["./-", "<stdin>"]

    def test_find_logs_returns_names_that_are_not_utf8(self, tmp_path):
        path = os.fsencode(tmp_path) + b"/\xff\xfe.json"
        try:
            Path(os.fsdecode(path)).write_text("{}\n")
        except OSError:
            pytest.skip("the file system wants UTF-8")
        for paths in ([os.fsdecode(path)], [tmp_path], [f"{tmp_path}/*.json"]):
            (file,) = find_logs(paths)
            assert os.fsencode(file.path) == path
            assert os.fsencode(file.name) == path


class TestSearch:
    def test_search_descends_directories_in_sorted_order(self, tree, monkeypatch):
        tree("d/z.json", "d/b/2.json", "d/b/10.json", "d/a/c/x.log", "d/a.json")
        expected = ["a.json", "z.json", "a/c/x.log", "b/10.json", "b/2.json"]
        assert names("d") == [f"d/{name}" for name in expected]
        monkeypatch.chdir("d")
        assert names(".") == expected

    def test_search_descends_400_nested_directories(self, tree):
        folder = Path("d")
        for _ in range(400):
            folder /= "d"
        folder.mkdir(parents=True)
        (folder / "x.json").write_text("{}")
        assert names("d") == [str(folder / "x.json")]

    def test_search_skips_hidden_and_empty_files(self, tree):
        tree("d/.git/x.json", "d/.cache", "d/x.json", ".dataset_cache/x.json")
        tree("d/empty.json", "e/empty.json", "e/.hidden/x.json", text="")
        skipped = []
        assert names("d", skipped=skipped) == names("d", "e") == ["d/x.json"]
        assert skipped == []
        assert names(".dataset_cache") == [".dataset_cache/x.json"]
        with pytest.raises(NotFoundError, match=r"e, e/\.hidden: found no file to import"):
            find_logs(["e", "e/.hidden"])

    def test_search_visits_directories_in_link_loops_once(self, tree):
        tree("d/a/x.json", "d/b/y.json")
        Path("d/a/self").symlink_to(".")
        Path("d/b/to_a").symlink_to("../a")
        Path("d/b/far").symlink_to(Path("d").resolve())
        for number in range(30):
            Path(f"d/a/l{number}").symlink_to("..")
            Path(f"d/l{number}").symlink_to("a")
        expected = ["d/a/x.json", "d/b/y.json"]
        for pattern in ("d", "d/**/*.json", "d/**/**/*.json"):
            assert names(pattern) == expected

    def test_links_are_followed(self, tree):
        tree("elsewhere/x.json", "d/y.json")
        Path("d/link").symlink_to("../elsewhere")
        Path("d/z.json").symlink_to("../elsewhere/x.json")
        assert names("d") == ["d/y.json", "d/z.json"]
        Path("d/z.json").unlink()
        assert names("d") == ["d/y.json", "d/link/x.json"]

    def test_unreadable_paths_are_reported(self, tree):
        tree("d/x.json")
        Path("d/broken").symlink_to("gone")
        Path("d/loop").symlink_to("loop")
        os.mkfifo("d/pipe")
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("d/socket")
            Path("d/zero").symlink_to("/dev/zero")
            skipped = []
            assert names("d", skipped=skipped) == ["d/x.json"]
        reasons = dict(skipped)
        special = ("broken", "loop", "pipe", "socket", "zero")
        assert sorted(name for name, _ in skipped) == [f"d/{name}" for name in special]
        assert reasons["d/broken"].startswith("cannot be followed")
        assert reasons["d/pipe"] == reasons["d/zero"] == "no regular file"
        assert find_logs(["d"])  # on_skipped is optional

    def test_search_skips_and_reports_unreadable_directory(self, tree, monkeypatch):
        tree("d/a/x.json", "d/b/y.json")
        listed = Path.iterdir

        def refuse(path):
            if path.name == "a":
                raise PermissionError(13, "Permission denied")
            return listed(path)

        # Permission bits do not bind root.
        monkeypatch.setattr(Path, "iterdir", refuse)
        skipped = []
        assert names("d", skipped=skipped) == ["d/b/y.json"]
        assert skipped == [("d/a", "cannot be read (Permission denied)")]


class TestPatterns:
    def test_pattern_matches_visible_names_in_one_directory(self, tree, tmp_path):
        tree("a.json", "b.json", "c.log", ".d.json", "e/f.json", "a[.json")
        assert names("?.json") == ["a.json", "b.json"]
        assert names("?.*") == ["a.json", "b.json", "c.log"]
        assert names("[!a].json") == ["b.json"]
        assert names("*[.json") == ["a[.json"]
        assert names(f"{tmp_path}/*/f.json") == [f"{tmp_path}/e/f.json"]

    def test_pattern_searches_matching_directories(self, tree, monkeypatch):
        tree("runs/1/a/x.json", "runs/2/y.json", "runs/z.json")
        assert names("runs/*") == ["runs/1/a/x.json", "runs/2/y.json", "runs/z.json"]
        assert names("runs/*/") == ["runs/1/a/x.json", "runs/2/y.json"]
        monkeypatch.chdir("runs/2")
        assert names("../?/*.json") == ["../2/y.json"]

    def test_double_star_matches_any_depth(self, tree):
        tree("d/x.json", "d/a/x.json", "d/a/b/x.json", "d/a/b/y.log", "d/.h/x.json")
        everything = ["d/x.json", "d/a/x.json", "d/a/b/x.json"]
        assert names("d/**/x.json") == everything
        assert names("**/x.json") == everything
        assert names("**/**/*.json") == everything
        assert names("d/**/b/*") == ["d/a/b/x.json", "d/a/b/y.log"]
        assert sorted(names("d/**")) == sorted([*everything, "d/a/b/y.log"])

    def test_brackets_in_names_of_tenset_are_literal(self, tree):
        name = "measure_records/t4/([0bcb86dd,1,56,56],cuda).json"
        tree(name)
        # No shell has expanded the pattern; its brackets match themselves.
        assert names(name) == names(name.replace("t4", "*")) == [name]

    def test_pattern_without_match_raises_not_found(self, tree):
        tree("a/x.json", "a/y")
        for pattern in ("*.log", "a/*/x", "a/**/z", "gone/**", "**/gone/*", "a/y/*", "a/y/**"):
            with pytest.raises(NotFoundError, match="no such file or directory") as caught:
                find_logs([pattern])
            assert str(caught.value).startswith(f"{pattern}: ")

    def test_pattern_returns_each_file_once_and_reports_special_ones(self, tree):
        tree("a.log", text="")
        tree("b.log")
        os.mkfifo("c.log")
        Path("d.log").symlink_to("gone")
        skipped = []
        assert names("b*", "*.log", ".", skipped=skipped) == ["b.log", "a.log"]
        assert [name for name, _ in skipped[:2]] == ["c.log", "d.log"]


class TestCompanions:
    def test_find_logs_leaves_out_companion_files(self, tree, monkeypatch):
        tree("d/x.record", "d/x.workload", "d/y.workload", "e/x.workload")
        found = ["d/x.record", "d/y.workload"]
        assert names("d") == names("d/*") == names("d/x.workload", "d") == found
        assert names("d/x.workload", "d/x.record", "d/y.workload") == found
        assert names("d/x.workload") == ["d/x.workload"]
        tree("e/x.record", text="")  # an empty file has no companion
        assert names("e") == ["e/x.workload"]
        monkeypatch.setattr(Pairs, "companions", lambda self, path: [Path("gone")])
        assert names("d/x.record") == ["d/x.record"]


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /proc")
def test_search_skips_files_of_proc_without_size():
    """Files in /proc have no size, and its links lead everywhere."""
    skipped = []
    assert names("/proc/self/fdinfo", "/proc/self/limits", skipped=skipped) == ["/proc/self/limits"]

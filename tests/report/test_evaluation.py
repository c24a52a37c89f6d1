"""Plots of an evaluation have its values. How they look, only people can judge."""

import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from judged_data import judged
from learnable import quick
from matplotlib.figure import Figure

from tunedb.errors import PluginError, StorageError, UsageError
from tunedb.models.baselines import NearestNeighbour, RandomOrder
from tunedb.models.evaluation import evaluate
from tunedb.report import evaluation

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def found():
    return evaluate(
        judged(machines=2),
        {"one <&>": quick(rounds=2), "$two_$": quick(rounds=2, loss="squared")},
        regimes=["new-family", "new-hardware"],
        pools=["search"],
        baselines=(RandomOrder(), NearestNeighbour()),
        noise=np.log([0.9, 1.1]),
        threads=1,
    )


@pytest.fixture(scope="module")
def family(found):
    """The part of the evaluation about new families."""
    results = tuple(one for one in found.results if one.regime == "new-family")
    return replace(found, results=results)


@pytest.fixture(scope="module")
def svg(family, tmp_path_factory):
    """The text of the plot as SVG."""
    path = tmp_path_factory.mktemp("plot") / "a.svg"
    evaluation.plot(family, path)
    return path.read_text()


def test_equal_evaluations_give_equal_files(family, svg, tmp_path):
    evaluation.plot(family, tmp_path / "a.SVG")
    assert (tmp_path / "a.SVG").read_text() == svg
    assert svg.startswith("<?xml")


def test_plot_escapes_names_of_models(svg):
    """A recipe's name may come from somebody else's file."""
    assert "one &lt;&amp;&gt;" in svg
    assert "one <&" not in svg
    assert ElementTree.fromstring(svg).tag.endswith("svg")


def test_plot_draws_the_values_of_the_evaluation(found, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    evaluation.plot(found, tmp_path / "a.png")
    bars, curves, ranks = drawn[0].axes[:3]
    assert len(drawn[0].axes) == 6
    assert bars.get_title(loc="left") == "new-family, search pools (10 workloads)"
    heights = [patch.get_height() for patch in bars.patches]
    results = [found.result("new-family", "search", name) for name in evaluation._colours(found)]
    assert [one.model for one in results] == ["one <&>", "$two_$", "nearest"]
    expected = [one.summary(figure).mean for one in results for figure in evaluation._BARS]
    assert heights == pytest.approx(expected)
    lines = [line.get_ydata() for line in curves.lines]
    assert any(np.allclose(line, results[0].peak.mean(axis=0)) for line in lines)
    assert any(np.allclose(line, results[0].random_peak.mean(axis=0)) for line in lines)
    shares = ranks.images[0].get_array()
    assert np.allclose(shares.sum(axis=0), 1.0)


@pytest.mark.parametrize(("name", "begin"), [("a.png", b"\x89PNG"), ("a.pdf", b"%PDF")])
def test_plot_of_one_workload_has_the_format_of_the_suffix(found, tmp_path, name, begin):
    result = found.results[0]
    names = ("workloads", "values", "random", "peak", "random_peak")
    one = replace(result, floor=None, **{each: getattr(result, each)[:1] for each in names})
    evaluation.plot(replace(found, results=(one,)), tmp_path / name)
    drawn = (tmp_path / name).read_bytes()
    assert drawn.startswith(begin) and len(drawn) > 1000


def test_plot_rejects_unknown_suffix_missing_folder_and_missing_matplotlib(
    found, tmp_path, monkeypatch
):
    for name in ("a.txt", "figure"):
        with pytest.raises(UsageError, match=r"a plot's file ends in \.png, \.svg"):
            evaluation.check(tmp_path / name)
    with pytest.raises(StorageError, match="No such file or directory"):
        evaluation.plot(found, tmp_path / "nowhere" / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(PluginError, match=r"pip install 'tunedb\[plots\]'"):
        evaluation.check(tmp_path / "a.png")

import sys

import numpy as np
import pytest

from tunedb.advisor.analysis import clusters
from tunedb.advisor.analysis.clusters import cluster, ellipse
from tunedb.errors import PluginError

sklearn = pytest.importorskip("sklearn")


def clouds(*sizes, apart=10.0, seed=0):
    random = np.random.default_rng(seed)
    centres = [(apart * i, apart * (i % 2)) for i in range(len(sizes))]
    return np.vstack([random.normal(at, 1, (n, 2)) for at, n in zip(centres, sizes, strict=True)])


def test_planted_clouds_are_found_largest_first():
    found = cluster(clouds(10, 40, 25))
    assert found.count == 3
    assert found.assignment.tolist() == [2] * 10 + [0] * 40 + [1] * 25
    assert set(found.silhouettes) == set(range(2, 11))
    assert found.silhouette == max(found.silhouettes.values()) > 0.7


def test_equal_calls_give_equal_clusters():
    points = clouds(30, 30, apart=2)
    assert cluster(points).assignment.tolist() == cluster(points).assignment.tolist()


def test_silhouette_of_many_rows_is_that_of_a_sample(monkeypatch):
    points = clouds(60, 60)
    whole = cluster(points)
    monkeypatch.setattr(clusters, "SILHOUETTE_ROWS", 40)
    part = cluster(points)
    assert part.assignment.tolist() == whole.assignment.tolist()
    assert part.silhouettes[2] != whole.silhouettes[2]
    assert part.silhouettes[2] == pytest.approx(whole.silhouettes[2], abs=0.1)


def test_few_different_rows_have_two_clusters_or_none():
    for points in (np.zeros((0, 2)), clouds(2), np.ones((9, 2))):
        assert cluster(points) is None
    assert cluster(clouds(1, 2)).count == 2
    found = cluster(np.array([[0.0, 0.0]] * 4 + [[1.0, 1.0]] * 3))
    assert found.assignment.tolist() == [0] * 4 + [1] * 3
    assert list(found.silhouettes) == [2]


def test_missing_scikit_learn_raises_error_with_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with pytest.raises(PluginError, match=r"pip install 'tunedb\[advise\]'"):
        cluster(clouds(5, 5))


def test_ellipse_holds_95_percent_of_a_normal_cloud():
    random = np.random.default_rng(0)
    points = random.normal(size=(20_000, 2)) @ np.array([[3.0, 0.0], [1.0, 0.5]]) + [7, -2]
    found = ellipse(points)
    turned = points - [found.x, found.y]
    cosine, sine = np.cos(found.angle), np.sin(found.angle)
    along, across = turned @ [cosine, sine], turned @ [-sine, cosine]
    inside = (along / found.long) ** 2 + (across / found.short) ** 2 <= 1
    assert inside.mean() == pytest.approx(0.95, abs=0.005)
    assert found.long > found.short
    assert (found.x, found.y) == pytest.approx((7, -2), abs=0.1)


def test_outline_of_ellipse_has_constant_mahalanobis_distance():
    points = clouds(50) * [1, 4]
    found = ellipse(points)
    centred = found.outline() - points.mean(axis=0)
    inverse = np.linalg.inv(np.cov(points.T))
    distances = np.einsum("ij,jk,ik->i", centred, inverse, centred)
    np.testing.assert_allclose(distances, 5.991, rtol=1e-6)


def test_two_points_and_a_line_have_no_ellipse():
    assert ellipse(clouds(2)) is None
    assert ellipse(np.array([[0.0, 0], [1, 2], [2, 4], [3, 6]])) is None
    assert ellipse(np.ones((5, 2))) is None
    assert ellipse(np.array([[0.0, 0], [1, 0], [0, 1]])) is not None

import zipfile
import zlib

import numpy as np
import pytest
from learnable import learnable, quick

from tunedb.errors import FormatError, UsageError
from tunedb.exchange.prior import IN_WHEEL
from tunedb.features.steps import STEPS
from tunedb.models import model as models
from tunedb.models import prior_models
from tunedb.models.prior_models import PriorModel, name_of, read, write
from tunedb.models.training import fit
from tunedb.results import NewModel


@pytest.fixture
def prior(tmp_path):
    path = tmp_path / "team.bundle"
    path.write_bytes(b"records" + b"d" * 32)
    return path


@pytest.fixture
def file(prior, tmp_path):
    """The models of the prior: one, named x."""
    fitted = fit(learnable(4, 20), quick())
    row = NewModel(b"a" * 16, "ranker", b"{}", b"b" * 16, {"learnt": {"programs": 80}}, None)
    path = tmp_path / "team.models"
    write({"x": PriorModel(fitted.model, row)}, prior, path)
    return path


def test_models_are_read_as_they_were_written(prior, file):
    examples = learnable(4, 20)
    written = fit(examples, quick()).model
    found = read(prior, "x", file)
    assert found.model.to_bytes() == written.to_bytes()
    assert found.row.card == {"learnt": {"programs": 80}}
    assert (found.row.digest, found.row.training_digest) == (b"a" * 16, b"b" * 16)
    again = file.with_name("again")
    write({"x": found}, prior, again)
    assert again.read_bytes() == file.read_bytes()


def test_a_compact_model_gives_the_same_scores_in_fewer_bytes():
    examples = learnable(4, 20)
    model = fit(examples, quick(members=2)).model
    compact = model.compact()
    np.testing.assert_array_equal(compact.score_examples(examples), model.score_examples(examples))
    sizes = [len(zlib.compress(each.to_bytes())) for each in (compact, model)]
    assert sizes[0] < 0.8 * sizes[1]
    assert compact.compact().to_bytes() == compact.to_bytes()


def test_models_of_another_prior_or_name_are_not_there(prior, file, tmp_path):
    assert read(prior, "y", file) is None
    assert read(prior, "x", tmp_path / "missing") is None
    prior.write_bytes(b"records" + b"e" * 32)
    assert read(prior, "x", file) is None


@pytest.mark.parametrize("damage", ["empty", "no archive", "half", "a flipped bit of a model"])
def test_a_damaged_file_says_so(prior, file, damage):
    whole = file.read_bytes()
    flipped = bytearray(whole)
    with zipfile.ZipFile(file) as archive:
        flipped[archive.getinfo("x.model").header_offset + 200] ^= 1
    parts = {"empty": b"", "no archive": b"PK no archive", "half": whole[: len(whole) // 2]}
    file.write_bytes(parts.get(damage, flipped))
    with pytest.raises(FormatError, match=r"team\.models: damaged .* reinstall tunedb"):
        read(prior, "x", file)


def test_a_model_of_a_newer_xgboost_is_refused(prior, file, monkeypatch):
    monkeypatch.setattr(models, "_numbers", lambda version: (len(version),))
    monkeypatch.setattr(models.import_xgboost(), "__version__", "")
    with pytest.raises(UsageError, match="written by XGBoost"):
        read(prior, "x", file)


def test_models_of_the_package_are_of_its_prior_and_its_features():
    """After a change of the prior or of the features: make prior-models."""
    drafts = type("Drafts", (), {"name": "steps.draft"})
    for vectors in ("avx2", "avx512f"):
        for features in (STEPS, drafts):
            found = read(IN_WHEEL, name_of(("llvm", vectors), features))
            assert found is not None, f"no {features.name} for {vectors}: make prior-models"
            model = found.model
            assert (model.feature_set, model.version) == (features.name, STEPS.version)
            assert model.columns == STEPS.columns
            # The prior has fewer for AVX2; some are the only ones of their group.
            assert 10_000 < found.row.card["learnt"]["programs"] <= 12_000
            assert len(model.boosters) == 4
    assert prior_models.FILE.stat().st_size < 3_000_000

import dataclasses
import math

import pytest
from builders import make_measurement, make_trace, make_workload

from tunedb.records import NO_TARGET, Status, Target
from tunedb.run_times import NO_TIME, mean_of, status_of


def test_records_are_frozen_equal_and_hashable():
    for record, name in ((make_workload(), "name"), (make_measurement(), "digest")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, b"")
    assert make_measurement(1) == make_measurement(1)
    assert len({make_measurement(1), make_measurement(1), make_measurement(2)}) == 2


def test_architecture_comes_from_arch_mcpu_march_or_mtriple():
    for config, architecture in (
        ({"kind": "llvm", "mcpu": "znver4"}, "znver4"),
        ({"kind": "cuda", "arch": "sm_90", "mcpu": "x"}, "sm_90"),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, "aarch64"),
        ({"kind": "llvm", "mcpu": "", "march": "armv8"}, "armv8"),
        ({"kind": "llvm"}, ""),
    ):
        assert Target.from_config(config).architecture == architecture


def test_from_config_accepts_missing_config_and_missing_kind():
    assert Target.from_config(None) is NO_TARGET
    assert (NO_TARGET.attributes, NO_TARGET.architecture) == (None, "")
    assert Target.from_config({"tag": "x"}).kind == "unknown"


def test_target_ignores_order_of_its_attributes():
    one = Target.from_config({"kind": "llvm", "mcpu": "x"})
    assert one == Target.from_config({"mcpu": "x", "kind": "llvm"})
    assert one.attributes == {"kind": "llvm", "mcpu": "x"}


def test_measurement_is_valid_unless_failed_or_empty():
    assert make_measurement().is_valid
    assert not make_measurement(empty=True).is_valid
    assert not make_measurement(0, None).is_valid
    assert make_trace(empty=True).is_empty


def test_mean_of_sums_from_left_to_right():
    # 1e16 + 1.0 == 1e16: a compensated or reordered sum gives another mean.
    assert mean_of([1e16, 1.0, -1e16]) == 0.0
    assert mean_of([1e16, -1e16, 1.0]) == 1.0 / 3
    assert mean_of([0.1] * 10) == 0.9999999999999999 / 10
    assert math.fsum([0.1] * 10) / 10 != mean_of([0.1] * 10)


def test_status_of_is_ok_if_any_time_is_not_the_sentinel():
    for run_secs in (None, (), (NO_TIME,), (NO_TIME, NO_TIME)):
        assert status_of(run_secs) is Status.FAILED
    for run_secs in ((NO_TIME, 0.5), (0.5,), (0.0,)):
        assert status_of(run_secs) is Status.OK

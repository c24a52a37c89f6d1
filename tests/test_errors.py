import inspect

import tunedb
from tunedb import errors

CLASSES = [
    c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == "tunedb.errors"
]


def test_every_error_is_exported_and_derives_from_tunedb_error():
    for kind in CLASSES:
        assert issubclass(kind, errors.TuneDBError)
        assert getattr(tunedb, kind.__name__) is kind
        assert kind.__name__ in tunedb.__all__


EXIT_CODES = {
    **{"TuneDBError": 1, "UsageError": 2, "TargetError": 2, "NotFoundError": 3, "SchemaError": 4},
    **{"BusyError": 5, "StorageError": 1, "UnreachableError": 5, "FormatError": 1},
    **{"IntegrityError": 1, "LimitError": 1, "PluginError": 1, "ApprovalError": 2},
}


def test_exit_codes_of_errors_do_not_change():
    assert {kind.__name__: kind.exit_code for kind in CLASSES} == EXIT_CODES

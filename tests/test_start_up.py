"""Importing is cheap: the library loads other packages when it needs them."""

from processes import printed

#: Packages that take tens of milliseconds to import, or that an installation may lack.
LAZY = {
    *("tvm", "tvm_ffi", "click", "rich", "xgboost", "sklearn", "scipy", "dask", "matplotlib"),
    *("alembic", "jinja2", "psycopg"),
}

EVERY_MODULE = """
import importlib, pkgutil, tunedb

def walk(package):
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if module.name not in ("tunedb.cli", "tunedb.plugins", "tunedb.migrations"):
            imported = importlib.import_module(module.name)
            if module.ispkg:
                walk(imported)

walk(tunedb)
"""


def loaded_after(statement):
    """Return the top-level modules that a new interpreter has after a statement."""
    names = printed("-c", f"{statement}\nimport sys\nprint(*sorted(sys.modules))").split()
    return {name.partition(".")[0] for name in names}


def test_importing_tunedb_loads_no_heavy_package():
    assert not loaded_after("import tunedb") & {*LAZY, "sqlalchemy", "numpy", "orjson"}


def test_importing_all_modules_loads_no_heavy_package():
    loaded = loaded_after(EVERY_MODULE)
    assert loaded >= {"tunedb", "sqlalchemy", "numpy"}
    assert not loaded & LAZY

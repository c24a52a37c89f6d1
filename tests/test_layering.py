"""Who may import what, and what nobody does (docs/design.md, "Layout" and "Trust")."""

import ast
import functools
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

#: Folders of the repository, each a package of its own name inside tunedb.
MAPPED = ("cli", "plugins", "migrations")


def sources(*folders):
    """Return the Python files in folders of the repository; links of tunedb are left out."""
    found = []
    for folder in folders:
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT).parts
            if parts[0] == "tunedb" and parts[1] in MAPPED:
                continue
            found.append(path)
    return sorted(found)


LIBRARY = sources("tunedb")
EVERYTHING = sources("tunedb", *MAPPED)
NAMES = {path: str(path.relative_to(ROOT)) for path in EVERYTHING}


@functools.cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def is_type_checking(node):
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


@functools.cache
def imports(path, *, module_level=False):
    """Return the names of the modules that a file imports, absolute ones only."""
    found = set()

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if module_level and isinstance(
                child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
            ):
                continue
            if module_level and is_type_checking(child):
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.level == 0:
                found.add(child.module)
                found.update(f"{child.module}.{alias.name}" for alias in child.names)
            visit(child)

    visit(tree(path))
    return frozenset(found)


def tops(names):
    return {name.partition(".")[0] for name in names}


def users_of(module, paths, **options):
    return {NAMES[path] for path in paths if module in tops(imports(path, **options))}


def in_folder(names, folder):
    return {name for name in names if name.startswith(folder + "/")}


def test_there_is_something_to_look_at():
    assert len(LIBRARY) >= 12
    assert {NAMES[path].split("/")[0] for path in EVERYTHING} >= {"tunedb", "plugins", "migrations"}
    assert "sqlalchemy" in tops(imports(ROOT / "tunedb" / "store.py"))
    assert "alembic" not in tops(imports(ROOT / "tunedb" / "versions.py", module_level=True))


def test_the_finder_finds(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        "import a.b\nfrom c import d\nfrom . import e\n"
        "def f():\n    import g\n"
        "if TYPE_CHECKING:\n    import h\n"
        "try:\n    import i\nexcept ImportError:\n    pass\n"
        "class J:\n    import k\n"
    )
    assert imports(path) == {"a.b", "c", "c.d", "g", "h", "i", "k"}
    assert imports(path, module_level=True) == {"a.b", "c", "c.d", "i", "k"}


@pytest.mark.parametrize(
    "module",
    [
        "tvm",
        "tvm_ffi",
        "click",
        "rich",
        "xgboost",
        "sklearn",
        "scipy",
        "dask",
        "matplotlib",
        "alembic",
        "psycopg",
    ],
)
def test_the_library_imports_nothing_heavy_at_module_level(module):
    assert users_of(module, LIBRARY, module_level=True) == set()


@pytest.mark.parametrize("module", ["tvm", "tvm_ffi"])
def test_only_plugins_import_tvm(module):
    users = users_of(module, EVERYTHING)
    assert users == in_folder(users, "plugins")


@pytest.mark.parametrize("module", ["click", "rich"])
def test_only_the_command_line_prints(module):
    users = users_of(module, EVERYTHING)
    assert users == in_folder(users, "cli")


#: They look at databases that a Store cannot open or must not trust: damaged, older, foreign.
EXAMINERS = {
    *(f"tunedb/{name}.py" for name in ("check", "check_derived", "check_plain", "describe")),
}


def test_only_the_database_rooms_know_sqlalchemy():
    users = users_of("sqlalchemy", EVERYTHING)
    assert users - in_folder(users, "migrations") - EXAMINERS == {
        *(f"tunedb/{name}.py" for name in ("engine", "deadlines", "guards", "schema", "versions")),
        *(
            f"tunedb/{name}.py"
            for name in (
                *("store", "derived", "governing", "retractions", "rows", "statements"),
                *("removing", "merging", "learnt", "attribution"),
            )
        ),
        *(
            f"tunedb/query/{name}.py"
            for name in (
                *("reader", "catalog", "programs", "models", "sessions"),
                *("training", "ledger", "records", "known", "neighbours", "sources"),
                *("space", "sharing", "launches", "equivalence", "words"),
            )
        ),
        "tunedb/query/statements.py",
        *(f"tunedb/sharing/{name}.py" for name in ("opened", "tables", "choosing")),
    }


@pytest.mark.parametrize("module", ["sqlite3", "psycopg"])
def test_few_modules_know_a_driver(module):
    # These read somebody else's files: another tool's, and a database that is not ours.
    readers = {"tunedb/logs/metaschedule_sqlite.py", "tunedb/sharing/foreign.py"}
    rooms = {"tunedb/engine.py", "tunedb/deadlines.py", "tunedb/versions.py"}
    assert users_of(module, EVERYTHING) <= {*rooms, *readers}


def test_alembic_is_only_in_the_migrations():
    users = users_of("alembic", EVERYTHING)
    assert users == in_folder(users, "migrations")
    assert users


#: TVM's builder sends functions and candidates to worker processes of its own, through a pipe;
#: nothing of it is ever stored or read from a file.
PIPES = {"plugins/metaschedule/build_worker.py", "plugins/metaschedule/warm_builder.py"}


@pytest.mark.parametrize(
    "module",
    ["pickle", "cPickle", "_pickle", "marshal", "shelve", "joblib", "dill", "cloudpickle", "dbm"],
)
def test_nobody_loads_code_from_data(module):
    allowed = PIPES if module in ("pickle", "cloudpickle") else set()
    assert users_of(module, EVERYTHING) <= allowed


def calls(path):
    return [node for node in ast.walk(tree(path)) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("path", EVERYTHING, ids=NAMES.get)
def test_nobody_runs_text(path):
    for call in calls(path):
        name = ast.unparse(call.func)
        where = f"{NAMES[path]}:{call.lineno}"
        assert name not in ("eval", "exec", "compile", "__import__"), where
        assert not any(word.arg == "allow_pickle" for word in call.keywords), where
        assert not name.endswith((".read_pickle", ".to_pickle", "yaml.load")), where


def is_number(part):
    return part.format_spec is not None and ast.unparse(part.format_spec) == "f'd'"


@pytest.mark.parametrize("path", EVERYTHING, ids=NAMES.get)
def test_sql_is_never_put_together_from_values(path):
    """Names of tables and pragmas come from constants; values are bound.

    A pragma takes no bound value; what is formatted as ``{:d}`` is a number whatever comes.
    """
    for call in calls(path):
        function = ast.unparse(call.func)
        if function in ("text", "sa.text") or function.endswith((".execute", ".exec_driver_sql")):
            for argument in call.args[:1]:
                assert not isinstance(argument, ast.BinOp), f"{NAMES[path]}:{call.lineno}"
                if isinstance(argument, ast.JoinedStr):
                    parts = [p for p in argument.values if isinstance(p, ast.FormattedValue)]
                    names = {ast.unparse(p.value) for p in parts if not is_number(p)}
                    constants = {name for name in names if name.rpartition(".")[2].isupper()}
                    assert names == constants, f"{NAMES[path]}:{call.lineno}"


@pytest.mark.parametrize("path", sources(*MAPPED), ids=NAMES.get)
def test_mapped_packages_are_never_imported_by_their_folder(path):
    """``import cli`` would work in the repository only."""
    assert not tops(imports(path)) & set(MAPPED)


@pytest.mark.parametrize("path", LIBRARY, ids=NAMES.get)
def test_the_library_does_not_need_the_command_line_nor_plugins(path):
    text = tree(path)
    for node in ast.walk(text):
        if isinstance(node, ast.ImportFrom):
            named = {f"{node.module or ''}.{alias.name}" for alias in node.names}
            for name in named:
                assert not re.match(r"(tunedb)?\.?(cli|plugins)\b", name), f"line {node.lineno}"


def test_every_package_is_listed():
    """What is not listed is missing from the wheel, and only there."""
    listed = set(PROJECT["tool"]["setuptools"]["packages"])
    folders = {path.parent.relative_to(ROOT) for path in EVERYTHING}
    packages = {
        ".".join(folder.parts if folder.parts[0] == "tunedb" else ("tunedb", *folder.parts))
        for folder in folders
    }
    assert packages == listed
    for folder in folders:
        assert (ROOT / folder / "__init__.py").is_file(), folder


def test_the_scripts_template_is_packaged():
    data = PROJECT["tool"]["setuptools"]["package-data"]
    assert (ROOT / "migrations" / "script.py.mako").name in data["tunedb.migrations"]


def loaded_after(statement):
    """Return the top-level modules that a new interpreter has after a statement."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sorted(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return tops(done.stdout.split())


def test_importing_tunedb_is_cheap():
    heavy = {
        "sqlalchemy",
        "alembic",
        "tvm",
        "click",
        "rich",
        "xgboost",
        "numpy",
        "psycopg",
        "orjson",
    }
    assert not loaded_after("import tunedb") & heavy


def test_opening_a_database_loads_no_alembic(sqlite_file):
    statement = f"import tunedb\nwith tunedb.open({str(sqlite_file)!r}) as s: s.query.best([1])"
    loaded = loaded_after(statement)
    assert "sqlalchemy" in loaded
    assert not loaded & {"alembic", "tvm", "click", "rich", "xgboost", "psycopg"}

"""Layers: databases of others that answer after the own one."""

from __future__ import annotations

import logging
from contextlib import ExitStack, closing
from unittest import mock

import pytest
import tvm
from builders import copied, sql
from effort import long
from logged import logged
from sqlalchemy.engine import make_url
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from tunedb.errors import StorageError, TargetError, UnreachableError, UsageError
from tunedb.exchange.peers import open_layer
from tunedb.plugins.metaschedule import Database, modules
from tunedb.plugins.metaschedule.deploy.apply import compile, schedule
from tunedb.plugins.metaschedule.search import schedule_queries
from tunedb.plugins.metaschedule.search.warm_start import Relatives
from tunedb.plugins.metaschedule.tuning import defaults
from tunedb.programs.workload_info import signature_of
from tunedb.storage.store import Store


@pytest.fixture
def mod(tools):
    return tools.matmul()


@pytest.fixture
def own_path(tmp_path):
    return tmp_path / "own.db"


@pytest.fixture(params=["sqlite", long("postgresql")])
def team_url(request, tmp_path):
    """The URL of a team's database, which is empty."""
    if request.param == "sqlite":
        return str(tmp_path / "team.db")
    return request.getfixturevalue("postgres_url")


def fill(url, tools, mod, *found, target=None):
    """Store records of a module in a team's database; `found` has times and inner tiles."""
    target = tools.llvm if target is None else target
    with closing(Database(url, target=target)) as database:
        database.commit_workload(mod)
        for seconds, tile in found:
            tools.commit(database, mod, [seconds], tile=(16 // tile, tile), target=target)


@pytest.fixture
def layered(own_path, tools, opened):
    """A function that opens the own database with layers behind it."""
    return lambda *layers, **more: opened(own_path, target=tools.llvm, layers=list(layers), **more)


@pytest.mark.usefixtures("no_parser")
def test_layer_answers_if_own_database_has_no_record(own_path, team_url, tools, layered, mod):
    fill(team_url, tools, mod, (0.5, 4), (0.25, 8), (0.75, 2))
    database = layered(team_url)
    assert database.has_workload(mod)
    assert not database.has_workload(tools.matmul(8))
    best = database.query_tuning_record(mod, tools.llvm, "main")
    assert tools.seconds([best]) == [[0.25]]
    assert best.target.same_as(tools.llvm)
    assert "T.parallel" in database.query_schedule(mod, tools.llvm, "main").mod.script()
    assert database.query_ir_module(mod, tools.llvm, "main") is not None
    workload = database.commit_workload(mod)
    top = database.get_top_k(workload, 2)
    assert tools.seconds(top) == [[0.25], [0.5]]
    assert (len(database.get_top_k(workload, 10)), database.get_top_k(workload, 0)) == (3, [])
    for record in top:
        assert record.workload.same_as(workload)
        record.trace.apply_to_schedule(Schedule(mod), remove_postproc=False)
    # All other answers come from the own database alone, and measurements go there.
    assert (len(database), database.get_all_tuning_records()) == (0, [])
    database.commit_tuning_record(tools.record(mod, best.workload, [0.5], tile=(2, 8)))
    assert (len(database), tools.top(database, workload)) == (1, [[0.5]])
    with Store(own_path) as own, closing(open_layer(team_url, own)) as store:
        assert (store.records.count(), store.read_only) == (3, True)


@pytest.mark.parametrize(("own", "served"), [(0.5, 0.5), (1e10, 0.25)])
def test_own_records_that_ran_precede_layers(own, served, own_path, team_url, tools, layered, mod):
    fill(team_url, tools, mod, (0.25, 4))
    fill(own_path, tools, mod, (own, 8))
    database = layered(team_url)
    assert (tools.top(database, mod), tools.best(database, mod)) == ([[served]], [served])


def test_layers_are_asked_in_their_order(tmp_path, tools, layered):
    mod, small = tools.matmul(), tools.matmul(8)
    fill(tmp_path / "a.db", tools, mod, (0.5, 4))
    fill(tmp_path / "b.db", tools, mod, (0.25, 8))
    fill(tmp_path / "b.db", tools, small, (0.125, 8))
    database = layered(tmp_path / "a.db", tmp_path / "b.db")
    assert [tools.best(database, one) for one in (mod, small)] == [[0.5], [0.125]]


def test_read_only_database_serves_records_of_a_layer(own_path, team_url, tools, opened, mod):
    fill(team_url, tools, mod, (0.25, 4))
    fill(own_path, tools, tools.matmul(8))
    options = {"target": tools.llvm, "read_only": True}
    assert tools.top(opened(own_path, **options, layers=team_url), mod) == [[0.25]]
    with pytest.raises(StorageError, match="has no such"):
        opened(own_path, **options).commit_workload(mod)


def test_layer_serves_compatible_targets_with_fallback_alone(team_url, tools, layered, mod):
    fill(team_url, tools, mod, (0.25, 4), target=tools.llvm_other)
    fill(team_url, tools, mod, (0.125, 4), target=tools.llvm_newer)
    for fallback, best in (("exact", None), ("compatible", [0.25])):
        database = layered(team_url, fallback=fallback)
        assert tools.top(database, mod) == ([best] if best else [])
        assert tools.best(database, mod) == best


def test_exact_target_of_layer_precedes_compatible_own_one(own_path, team_url, tools, layered, mod):
    """A layer's record for this machine is worth more than an own one for another."""
    fill(own_path, tools, mod, (0.125, 4), target=tools.llvm_other)
    fill(team_url, tools, mod, (0.25, 8))
    assert tools.top(layered(team_url, fallback="compatible"), mod) == [[0.25]]


def test_unbound_handle_skips_layer_of_several_kinds(own_path, team_url, tools, mod):
    fill(team_url, tools, mod, (0.25, 4))
    with closing(Database(own_path, layers=[team_url])) as database:
        workload = database.commit_workload(mod)
        assert tools.top(database, workload) == [[0.25]]
        # With several kinds the layer is ambiguous and skipped; it raises no error.
        fill(team_url, tools, mod, (0.125, 4), target=tools.cuda)
        with logged() as warnings:
            assert database.get_top_k(workload, 5) == []
            assert database.get_top_k(workload, 5) == []
        (message,) = warnings
        assert "choose one with Database(..., target=...)" in message
        assert tools.best(database, mod, tools.cuda) == [0.125]
        assert tools.best(database, mod) == [0.25]
    with closing(Database(team_url)) as database, pytest.raises(TargetError):
        database.get_top_k(database.commit_workload(mod), 5)


def test_missing_layer_is_reported_once_and_tried_later(tmp_path, tools, monkeypatch, layered):
    mod, team = tools.matmul(), tmp_path / "team.db"
    with logged() as warnings:
        database = layered(team)
        (message,) = warnings
        assert message == f"{team}: this layer is left out: no such file"
        workload = database.commit_workload(mod)
        assert database.get_top_k(workload, 5) == []
        fill(team, tools, mod, (0.25, 4))
        assert database.get_top_k(workload, 5) == []
        # The layer is tried again after some time.
        (layer,) = database._handle.layers
        monkeypatch.setattr(layer, "_retry_at", 0.0)
        assert tools.top(database, workload) == [[0.25]]
        assert len(warnings) == 1


def test_layer_is_skipped_while_unreachable(postgres_server, tools, monkeypatch, layered, mod):
    url = postgres_server.new_database()
    fill(url, tools, mod, (0.25, 4))
    name = make_url(url).database
    with logged() as warnings:
        database = layered(url)
        workload = database.commit_workload(mod)
        assert len(database.get_top_k(workload, 5)) == 1
        postgres_server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", name
        )
        postgres_server.execute(f"ALTER DATABASE {name} RENAME TO {name}_away")
        for _ in range(3):
            assert database.get_top_k(workload, 5) == []
            assert database.query_schedule(mod, tools.llvm, "main") is None
        (message,) = warnings
        assert "this layer is left out" in message
        assert "\n" not in message
        postgres_server.execute(f"ALTER DATABASE {name}_away RENAME TO {name}")
        (layer,) = database._handle.layers
        monkeypatch.setattr(layer, "_retry_at", 0.0)
        assert tools.top(database, workload) == [[0.25]]
    postgres_server.drop(url)


def test_invalid_database_as_layer_is_skipped_with_one_warning(own_path, tmp_path, tools):
    sql(tmp_path / "other.db", "CREATE TABLE program (id)")
    (tmp_path / "text.db").write_text("no database " * 100)
    view = tmp_path / "view.db"
    fill(view, tools, tools.matmul(), (0.25, 4))
    sql(view, "CREATE VIEW endless AS SELECT 1")
    problems = {"other.db": "another program", "text.db": "not a SQLite file", "view.db": "view"}
    for name, words in problems.items():
        with logged() as warnings:
            Database(own_path, target=tools.llvm, layers=[tmp_path / name]).close()
        (message,) = warnings
        assert words in message, message
    for url in ("mysql://host/db", ":memory:", ""):
        with pytest.raises(UsageError):
            Database(own_path, layers=[url])


def test_layers_of_a_run_come_from_arguments_or_configuration(tmp_path, tools, monkeypatch, mod):
    fill(tmp_path / "team.db", tools, mod, (0.25, 4))
    (tmp_path / "tunedb.toml").write_text('url = "own.db"\nlayers = ["team.db"]')
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNEDB_URL", raising=False)

    def count(database, layers):
        with ExitStack() as stack:
            found = defaults.database_of(database, tools.llvm, "structural", stack, layers)
            return len(list(found._handle.layers))

    assert [count(None, layers) for layers in (None, ["team.db", "more.db"], [])] == [1, 2, 0]
    # A database that is named has no configured layers.
    assert count("another.db", None) == 0
    with closing(Database("own.db")) as database:
        assert count(database, None) == 0
        with pytest.raises(UsageError, match="give its layers to it"):
            count(database, ["team.db"])


def test_database_ignores_itself_but_no_copy_as_a_layer(own_path, tmp_path, tools, layered, mod):
    with logged() as warnings:
        assert not layered(own_path).has_workload(mod)
        assert warnings == []
    copied(own_path, tmp_path / "copy.db")
    fill(tmp_path / "copy.db", tools, mod, (0.25, 4))
    assert layered(tmp_path / "copy.db").has_workload(mod)


def test_log_messages_of_a_layer_hide_its_password(own_path, tools):
    url = "postgresql://somebody:secret@localhost:1/nothing"
    with logged(logging.DEBUG) as messages:
        Database(own_path, target=tools.llvm, layers=[url]).close()
    assert messages
    assert not any("secret" in message for message in messages)


def evil(tools, mod, workload):
    """Return a record that passes a file to LLVM's parser when it is compiled."""
    sch = Schedule(mod)
    loops = sch.get_loops(sch.get_sblock("C"))
    sch.annotate(loops[0], "pragma_import_llvm", "/tmp/evil.ll")
    sch.enter_postproc()
    args = ms.arg_info.ArgInfo.from_prim_func(mod["main"])
    return ms.database.TuningRecord(sch.trace, workload, [0.001], tools.llvm, args)


@pytest.mark.usefixtures("no_parser")
def test_promise_17_forbidden_annotation_of_a_layer_never_reaches_tvm(
    team_url, tools, layered, mod
):
    """The next best record answers."""
    with closing(Database(team_url, target=tools.llvm)) as database:
        database.commit_tuning_record(evil(tools, mod, database.commit_workload(mod)))
    fill(team_url, tools, mod, (0.25, 4))
    with logged() as warnings:
        database = layered(team_url)
        workload = database.commit_workload(mod)
        assert tools.top(database, workload) == [[0.25]]
        assert "pragma" not in database.query_schedule(mod, tools.llvm, "main").mod.script()
        assert any("pragma_import_llvm" in message for message in warnings)
        (layer,) = database._handle.layers
        signature = signature_of(modules.to_workload(mod))
        target = database._handle.targets.stored(tools.llvm)
        ((_, donors),) = layer.relatives(signature, target, 8, 8)
        assert [donor.seconds for donor in donors] == [0.25]


@pytest.mark.usefixtures("no_parser")
def test_layer_that_is_gone_during_a_replay_answers_nothing(tmp_path, tools, monkeypatch, layered):
    """The server disappears while its record is found not to replay; the query returns None."""
    mod, team = tools.matmul(), tmp_path / "team.db"
    fill(team, tools, mod, (0.25, 4))
    database = layered(team)
    record = database.query_tuning_record(mod, tools.llvm, "main")
    (layer,) = database._handle.layers
    gone = mock.Mock(side_effect=UnreachableError("team.db: the server does not answer"))
    monkeypatch.setattr(layer.open().store.answers, "get", gone)
    assert record is not None
    layer.open().records.discard(record, ValueError("no such block"))
    assert database.query_tuning_record(mod, tools.llvm, "main") is None


@pytest.mark.usefixtures("no_parser")
def test_layer_with_a_damaged_workload_body_is_skipped(tmp_path, tools, layered):
    mod, team = tools.matmul(), tmp_path / "team.db"
    fill(team, tools, mod, (0.25, 4))
    sql(team, "UPDATE workload SET body = x'00ff', script = x'00ff'")
    with logged() as warnings:
        assert layered(team).query_tuning_record(mod, tools.llvm, "main") is None
        assert any("this layer is left out" in message for message in warnings)


def test_schedule_applies_record_of_a_layer_and_names_the_layer(team_url, tools, layered, mod):
    fill(team_url, tools, mod, (0.25, 4))
    database = layered(team_url)
    made, (use,) = schedule(mod, database)
    assert "T.parallel" in made.script()
    assert (use.function, use.record_id, use.workload_id, use.mean) == ("main", 1, None, 0.25)
    (layer,) = database._handle.layers
    assert use.layer == layer.location
    with tools.llvm, database:
        theirs = relax.transform.MetaScheduleApplyDatabase()(mod)
    tvm.ir.assert_structural_equal(theirs["main"].body, made["main"].body)
    assert compile(mod, database).uses == (use,)


def test_warm_drafts_include_programs_of_layers(team_url, tools, layered, mod):
    fill(team_url, tools, mod, (0.25, 4))
    record = tools.record(mod, ms.database.Workload(mod), None, tile=(1, 16))
    template = schedule_queries.from_tvm(record.trace)

    def warm(database):
        return Relatives.of(database._handle, mod, tools.llvm).adapted([template], 8)

    (found,) = warm(layered(team_url))
    assert (found.distance, found.seconds, found.kept) == (0.0, 0.25, 1.0)
    assert warm(layered()) == []

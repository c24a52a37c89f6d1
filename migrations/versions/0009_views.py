"""Views for people: records, best records, failures, tasks, sessions and launches.

Names, units and JSON are those of docs/sql.md. Times are in seconds, times of day are UTC, digests
are hexadecimal. PostgreSQL has booleans where SQLite has 0 and 1, and JSON where SQLite has text.
No view refers to another one, and none can be written to.

Revision 0009, after 0008.
"""

# Only names of this file are formatted into SQL here.
# ruff: noqa: S608

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

#: JSON that cannot be read is NULL: one row of a writer must not break a view for all readers of a
#: server. ``json`` accepts ``\u0000`` and lone surrogates, and only its operators fail on them;
#: ``jsonb`` refuses both at once. Too deep a nesting exceeds a limit of the server.
_FUNCTIONS = (
    """
CREATE FUNCTION tunedb_json(value bytea) RETURNS json
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM convert_from(value, 'UTF8')::jsonb;
  RETURN convert_from(value, 'UTF8')::json;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
  RETURN NULL;
END $$""",
    # auto_scheduler's decisions are numbers, each as unsigned LEB128.
    """
CREATE FUNCTION tunedb_numbers(value bytea) RETURNS json
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  numbers bigint[] := ARRAY[]::bigint[];
  number bigint := 0;
  shift integer := 0;
  byte integer;
BEGIN
  FOR place IN 0 .. length(value) - 1 LOOP
    byte := get_byte(value, place);
    number := number | ((byte & 127)::bigint << shift);
    IF byte < 128 THEN
      numbers := numbers || number;
      number := 0;
      shift := 0;
    ELSE
      shift := shift + 7;
    END IF;
  END LOOP;
  RETURN to_json(numbers);
END $$""",
)

_BYTE = "hex(substr(p.decisions, {place}, 1))"
_DIGITS = (
    "(instr('0123456789ABCDEF', substr({byte}, 1, 1)) - 1) * 16"
    " + instr('0123456789ABCDEF', substr({byte}, 2, 1)) - 1"
)
_FIRST_BYTE = _DIGITS.format(byte=_BYTE.format(place="1"))
_NEXT_BYTE = _DIGITS.format(byte=_BYTE.format(place="place + 1"))

_NUMBERS = f"""(
        WITH RECURSIVE number(place, byte, low, shift) AS (
            SELECT 1, {_FIRST_BYTE}, 0, 0 WHERE length(p.decisions) > 0
            UNION ALL
            SELECT place + 1, {_NEXT_BYTE},
                CASE WHEN byte < 128 THEN 0 ELSE low + ((byte & 127) << shift) END,
                CASE WHEN byte < 128 THEN 0 ELSE shift + 7 END
            FROM number WHERE place < length(p.decisions)
        )
        SELECT '[' || coalesce(group_concat(value), '') || ']' FROM (
            SELECT low + (byte << shift) AS value FROM number WHERE byte < 128 ORDER BY place
        )
    )"""

#: Expressions that differ between the dialects. With ``trusted_schema=OFF`` a view of SQLite before
#: 3.41 may call none of the JSON functions, only the table-valued ``json_each``.
_DIALECTS = {
    "sqlite": {
        "hex": "lower(hex({}))",
        "time": (
            "CASE WHEN {0} > 0 THEN strftime('%Y-%m-%d %H:%M:%S', {0} / 1000000, 'unixepoch')"
            " || printf('.%06d', {0} % 1000000) END"
        ),
        "text_json": "{0}",
        "member": "(SELECT value FROM json_each({0}) WHERE key = '{1}')",
        "number": "(SELECT value FROM json_each({0}) WHERE key = '{1}' AND type = 'integer')",
        "first": "(SELECT value FROM json_each(CAST({0} AS TEXT)) WHERE key = 0)",
        "extents": "'[' || {0}_x || ',' || {0}_y || ',' || {0}_z || ']'",
        "json": "CAST({0} AS TEXT)",
        "numbers": _NUMBERS,
    },
    "postgresql": {
        "hex": "encode({}, 'hex')",
        # Many clients know no year 10000, and SQLite gives NULL for it. to_timestamp rounds,
        # so the last second of the year 9999 is left out too.
        "time": (
            "CASE WHEN {0} > 0 AND {0} < 253402300799000000 THEN to_timestamp({0} / 1000000.0) END"
        ),
        "text_json": "tunedb_json(convert_to({0}, 'UTF8'))",
        "member": "tunedb_json(convert_to({0}, 'UTF8')) ->> '{1}'",
        "number": (
            "CAST(substring(tunedb_json(convert_to({0}, 'UTF8')) ->> '{1}' FROM '^[0-9]{{1,18}}$')"
            " AS bigint)"
        ),
        "first": "tunedb_json({0}) -> 0",
        "extents": "CAST('[' || {0}_x || ',' || {0}_y || ',' || {0}_z || ']' AS json)",
        "json": "tunedb_json({0})",
        "numbers": "tunedb_numbers(p.decisions)",
    },
}

_TRUST = "CASE {}.trust WHEN 2 THEN 'own' WHEN 1 THEN 'verified' ELSE 'foreign' END"
_STATUS = (
    "CASE m.status WHEN 0 THEN 'ok' WHEN 1 THEN 'failed' WHEN 2 THEN 'unmeasured' "
    "ELSE 'cut_short' END"
)
_STORE = "(SELECT value FROM meta WHERE key = 'store')"
_RETRACTED = f"""EXISTS (
        SELECT 1 FROM retraction AS r
        WHERE r.digest IN (m.digest, s.digest, e.digest) AND r.subject <> 'aliases'
            AND r.store IN (s.store, {_STORE})
    )"""
#: A source that is trusted here and not retracted.
_TRUSTED = f"""EXISTS (
            SELECT 1 FROM source AS o WHERE o.id = {{}}.source_id AND o.trust >= 1
                AND NOT EXISTS (
                    SELECT 1 FROM retraction AS r
                    WHERE r.digest = o.digest AND r.subject <> 'aliases'
                        AND r.store IN (o.store, {_STORE})
                )
        )"""
#: Times and operations of which the quotient is a number in both dialects.
_GFLOPS = "CASE WHEN {0} > 1e-12 AND w.flops < 1e30 THEN w.flops / {0} / 1e9 END"

#: The failure that counts: the last one of the record's own source, or else of a trusted source.
_FAILURE = f"""coalesce(
        (SELECT max(x.id) FROM failure AS x
        WHERE x.measurement_id = m.id AND x.source_id = m.source_id),
        (SELECT max(x.id) FROM failure AS x
        WHERE x.measurement_id = m.id AND {_TRUSTED.format("x")})
    )"""
#: The launches that count: those of the record's own source, or else of trusted sources.
_PREFERRED = f"""(
        l.source_id = m.source_id
        OR {_TRUSTED.format("l")}
        AND NOT EXISTS (
            SELECT 1 FROM launch AS x
            WHERE x.measurement_id = m.id AND x.source_id = m.source_id
        )
    )"""


def views(dialect: str) -> dict[str, str]:
    """Return the statements that create the views of a dialect, by name."""
    parts = _DIALECTS[dialect]
    device = parts["member"].format("t.config", "model")
    target = f"trim(t.kind || ' ' || coalesce(nullif({device}, ''), t.architecture))"
    # A stored trace of MetaSchedule has numbers of its instructions behind the decisions.
    decisions = f"""CASE
        WHEN w.format = 'ansor-key' THEN {parts["numbers"]}
        WHEN w.format IN ('tvm-graph', 'tvm-nodes', 'metaschedule-arguments')
            THEN {parts["first"].format("p.decisions")}
        ELSE {parts["json"].format("p.decisions")} END"""
    arguments = parts["text_json"].format("w.arguments")
    measured_at = parts["time"].format("m.measured_at")
    task = f"""w.id AS workload_id,
    w.name AS workload,
    t.id AS target_id,
    {target} AS target"""
    joined = """FROM measurement AS m
JOIN program AS p ON p.id = m.program_id
JOIN workload AS w ON w.id = m.workload_id
JOIN target AS t ON t.id = m.target_id
JOIN source AS s ON s.id = m.source_id
LEFT JOIN session AS e ON e.id = m.session_id"""

    def member(name: str, kind: str = "member") -> str:
        return parts[kind].format("e.fingerprint", name)

    selects = {
        "v_records": f"""SELECT
    m.id AS record_id,
    {parts["hex"].format("m.digest")} AS digest,
    {task},
    {_STATUS} AS status,
    CASE WHEN m.status = 0 THEN m.mean END AS mean_seconds,
    length(m.run_secs) / 8 AS repeats,
    m.all_cost AS trial_seconds,
    {measured_at} AS measured_at,
    m.session_id AS session_id,
    s.name AS source,
    {_TRUST.format("s")} AS trust,
    m.served = 1 AS served,
    {_RETRACTED} AS retracted,
    coalesce(m.origin, 'unknown') AS origin,
    p.id AS program_id,
    {parts["hex"].format("p.digest")} AS program,
    nullif({parts["hex"].format("m.donor")}, '') AS donor,
    {decisions} AS decisions
{joined}""",
        "v_best": f"""SELECT
    {task},
    w.family AS family,
    {arguments} AS arguments,
    w.flops AS flops,
    m.id AS record_id,
    m.mean AS mean_seconds,
    {_GFLOPS.format("m.mean")} AS gflops,
    {measured_at} AS measured_at,
    s.name AS source,
    {_TRUST.format("s")} AS trust,
    {decisions} AS decisions
FROM (SELECT DISTINCT workload_id, target_id FROM measurement WHERE served = 1) AS g
JOIN measurement AS m ON m.id = (
    SELECT b.id FROM measurement AS b
    WHERE b.workload_id = g.workload_id AND b.target_id = g.target_id AND b.served = 1
    ORDER BY b.mean, b.id LIMIT 1
)
JOIN program AS p ON p.id = m.program_id
JOIN workload AS w ON w.id = m.workload_id
JOIN target AS t ON t.id = m.target_id
JOIN source AS s ON s.id = m.source_id""",
        "v_failures": f"""SELECT
    m.id AS record_id,
    {task},
    coalesce(f.kind, 'unknown') AS kind,
    coalesce(f.phase, 'unknown') AS phase,
    f.message AS message,
    f.seconds AS seconds,
    {measured_at} AS measured_at,
    m.session_id AS session_id,
    s.name AS source,
    {_TRUST.format("s")} AS trust,
    {_RETRACTED} AS retracted
{joined}
LEFT JOIN failure AS f ON f.id = {_FAILURE}
WHERE f.id IS NOT NULL OR m.status = 1""",
        "v_tasks": f"""SELECT
    {task},
    w.family AS family,
    {arguments} AS arguments,
    w.flops AS flops,
    g.records AS records,
    g.failed AS failed,
    g.foreign_records AS foreign_records,
    g.served AS served,
    g.best AS best_seconds,
    {_GFLOPS.format("g.best")} AS best_gflops,
    {parts["time"].format("g.first_at")} AS first_measured_at,
    {parts["time"].format("g.last_at")} AS last_measured_at
FROM (
    SELECT m.workload_id, m.target_id,
        count(*) AS records,
        count(CASE WHEN m.status = 1 THEN 1 END) AS failed,
        count(CASE WHEN s.trust = 0 THEN 1 END) AS foreign_records,
        count(CASE WHEN m.served = 1 THEN 1 END) AS served,
        min(CASE WHEN m.served = 1 THEN m.mean END) AS best,
        min(CASE WHEN m.measured_at > 0 THEN m.measured_at END) AS first_at,
        max(m.measured_at) AS last_at
    FROM measurement AS m JOIN source AS s ON s.id = m.source_id
    GROUP BY m.workload_id, m.target_id
) AS g
JOIN workload AS w ON w.id = g.workload_id
JOIN target AS t ON t.id = g.target_id""",
        "v_sessions": f"""SELECT
    e.id AS session_id,
    e.key AS session,
    {parts["time"].format("e.started_at")} AS started_at,
    {member("cpu")} AS cpu,
    {member("gpu")} AS gpu,
    {member("cores", "number")} AS cores,
    {member("threads", "number")} AS threads,
    {member("os")} AS os,
    {member("tvm")} AS tvm_version,
    {member("tunedb")} AS tunedb_version,
    coalesce(g.records, 0) AS records,
    coalesce(g.failed, 0) AS failed,
    coalesce(g.foreign_records, 0) AS foreign_records,
    {parts["time"].format("g.last_at")} AS last_measured_at
FROM session AS e
LEFT JOIN (
    SELECT m.session_id,
        count(*) AS records,
        count(CASE WHEN m.status = 1 THEN 1 END) AS failed,
        count(CASE WHEN s.trust = 0 THEN 1 END) AS foreign_records,
        max(m.measured_at) AS last_at
    FROM measurement AS m JOIN source AS s ON s.id = m.source_id
    GROUP BY m.session_id
) AS g ON g.session_id = e.id""",
        "v_launches": f"""SELECT
    l.id AS launch_id,
    m.id AS record_id,
    {task},
    l.kernel AS kernel,
    l.number AS number,
    l.threads AS threads,
    {parts["extents"].format("l.block")} AS block,
    {parts["extents"].format("l.grid")} AS grid,
    l.registers AS registers,
    l.static_shared AS static_shared_bytes,
    l.dynamic_shared AS dynamic_shared_bytes,
    l.seconds AS seconds,
    c.tool AS tool,
    {parts["text_json"].format("c.counters")} AS counters,
    s.name AS source,
    {_TRUST.format("s")} AS trust,
    {_RETRACTED} AS retracted
FROM launch AS l
JOIN measurement AS m ON m.id = l.measurement_id
JOIN workload AS w ON w.id = m.workload_id
JOIN target AS t ON t.id = m.target_id
JOIN source AS s ON s.id = l.source_id
LEFT JOIN session AS e ON e.id = m.session_id
LEFT JOIN counter_set AS c ON c.id = l.counter_set_id
WHERE {_PREFERRED}""",
    }
    return {name: f"CREATE VIEW {name} AS\n{select}" for name, select in selects.items()}


def upgrade() -> None:
    connection = op.get_bind()
    if connection.dialect.name == "postgresql":
        for statement in _FUNCTIONS:
            connection.exec_driver_sql(statement)
    for statement in views(connection.dialect.name).values():
        # Without parameters neither driver reads a percent sign as one.
        connection.exec_driver_sql(statement)


def downgrade() -> None:
    for name in views(op.get_bind().dialect.name):
        op.execute(f"DROP VIEW {name}")
    if op.get_bind().dialect.name == "postgresql":
        op.execute("DROP FUNCTION tunedb_json, tunedb_numbers")

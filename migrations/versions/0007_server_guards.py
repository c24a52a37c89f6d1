"""Guards of a server: the rights of its writers, and the columns that the server derives.

* ``account``: the role of the server under which a database is registered;
* on PostgreSQL, triggers and functions (:data:`GUARDS`).

Revision 0007, after 0006.
"""

# Only names of this file are formatted into SQL here.
# ruff: noqa: S608

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

Int = sa.BigInteger().with_variant(sa.Integer, "sqlite")
Text = sa.Text()

#: Every function sets its own search path, so that its caller's does not resolve any name;
#: ``public`` stands for the schema of the tables. The functions check the session's user, because a
#: function of the owner runs as the owner.
_HEAD = "LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp"

#: Digest of the sketch without an instruction.
_EMPTY = "aeaf974d9e2b45930828388de3b244c4"

#: Statements that make or replace the guards, in order: ``tunedb db upgrade`` runs them again.
GUARDS = (
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_is_owner() RETURNS boolean STABLE {_HEAD} AS $$
BEGIN
  RETURN pg_has_role(session_user,
    (SELECT relowner FROM pg_class WHERE oid = 'public.measurement'::regclass), 'MEMBER');
END $$""",
    # Any writer may write in the server's own name; other names belong to their accounts.
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_may_speak(key text) RETURNS boolean STABLE {_HEAD} AS $$
BEGIN
  RETURN key = (SELECT value FROM public.meta WHERE meta.key = 'store')
    OR EXISTS (SELECT FROM public.account a
      WHERE a.store = tunedb_may_speak.key AND a.role = session_user)
    OR public.tunedb_is_owner();
END $$""",
    # float64, little-endian, summed from left to right as tunedb.run_times does. PostgreSQL refuses
    # a quotient that becomes 0, so the smallest means keep their given value.
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_mean(run_secs bytea, given float8) RETURNS float8
IMMUTABLE {_HEAD} AS $$
DECLARE
  size integer := length(run_secs);
  place integer := 0;
  total float8 := 0;
  high integer;
  exponent integer;
  fraction bigint;
  value float8;
BEGIN
  IF size % 8 <> 0 OR size > 800000 THEN
    RAISE 'tunedb guard: run times of % bytes', size USING ERRCODE = '22023';
  END IF;
  WHILE place < size LOOP
    high := get_byte(run_secs, place + 7) << 8 | get_byte(run_secs, place + 6);
    exponent := high >> 4 & 2047;
    -- These operators bind equally, from left to right.
    fraction := (high & 15)::bigint << 8 | get_byte(run_secs, place + 5)
      << 8 | get_byte(run_secs, place + 4) << 8 | get_byte(run_secs, place + 3)
      << 8 | get_byte(run_secs, place + 2) << 8 | get_byte(run_secs, place + 1)
      << 8 | get_byte(run_secs, place);
    IF exponent = 2047 THEN
      RAISE 'tunedb guard: a run time is not finite' USING ERRCODE = '22023';
    ELSIF exponent = 0 THEN
      value := fraction * power(2::float8, -1074);
    ELSE
      value := (fraction + 4503599627370496) * power(2::float8, exponent - 1075);
    END IF;
    IF high >= 32768 THEN
      value := -value;
    END IF;
    total := total + value;
    place := place + 8;
  END LOOP;
  IF size = 0 THEN
    RETURN NULL;
  ELSIF total <> 0 AND abs(total) < 1e-290 THEN
    RETURN CASE WHEN abs(given) <= abs(total) THEN given ELSE 0 END;
  END IF;
  RETURN total / (size / 8);
END $$""",
    f"""
CREATE OR REPLACE FUNCTION
public.tunedb_is_retracted(record bytea, source bigint, session bigint) RETURNS boolean
STABLE {_HEAD} AS $$
DECLARE
  digests bytea[];
  stores text[];
BEGIN
  SELECT ARRAY[record, s.digest, (SELECT e.digest FROM public.session e WHERE e.id = session)],
      ARRAY[s.store, (SELECT value FROM public.meta WHERE key = 'store')]
    INTO digests, stores FROM public.source s WHERE s.id = source;
  RETURN EXISTS (SELECT FROM public.retraction t WHERE t.digest = ANY (digests)
    AND t.store = ANY (stores) AND t.subject <> 'aliases');
END $$""",
    # Other columns determine a record's group, its rank and whether it is served.
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_measurement() RETURNS trigger {_HEAD} AS $$
DECLARE
  sketch bigint;
  trust bigint;
  store text;
BEGIN
  SELECT p.workload_id, p.target_id, p.sketch_id, s.trust, s.store
    INTO NEW.workload_id, NEW.target_id, sketch, trust, store
    FROM public.program p, public.source s WHERE p.id = NEW.program_id AND s.id = NEW.source_id;
  NEW.mean := public.tunedb_mean(NEW.run_secs, NEW.mean);
  NEW.served := 0;
  IF trust > 0 AND NEW.status = 0 AND NEW.mean IS NOT NULL
    AND NOT EXISTS (SELECT FROM public.sketch k WHERE k.id = sketch
      AND k.digest = '\\x{_EMPTY}')
    AND NOT (EXISTS (SELECT FROM public.retraction)
      AND public.tunedb_is_retracted(NEW.digest, NEW.source_id, NEW.session_id)) THEN
    NEW.served := 1;
  END IF;
  IF TG_OP = 'UPDATE' THEN
    IF NEW.source_id = OLD.source_id OR public.tunedb_is_owner() THEN
      RETURN NEW;
    ELSIF NOT EXISTS (SELECT FROM public.source n, public.source o
      WHERE n.id = NEW.source_id AND o.id = OLD.source_id
        AND (n.trust > o.trust OR n.trust = o.trust AND n.digest < o.digest)) THEN
      RAISE 'tunedb guard: record % belongs to a source that is trusted more', OLD.id
        USING ERRCODE = '42501';
    END IF;
  END IF;
  IF trust > 0 AND NOT public.tunedb_may_speak(store) THEN
    RAISE 'tunedb guard: source % is not of this account''s databases', NEW.source_id
      USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $$""",
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_source() RETURNS trigger {_HEAD} AS $$
BEGIN
  IF NEW.trust > 0 AND NEW.store <> (SELECT value FROM public.meta WHERE key = 'store')
    AND NOT public.tunedb_is_owner() THEN
    RAISE 'tunedb guard: only the owner trusts a source of another database'
      USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $$""",
    # Names of workloads, failures and launches in trusted sources come from the sources' accounts.
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_word() RETURNS trigger {_HEAD} AS $$
DECLARE
  trust bigint;
  store text;
BEGIN
  SELECT s.trust, s.store INTO trust, store FROM public.source s WHERE s.id = NEW.source_id;
  IF trust > 0 AND NOT public.tunedb_may_speak(store) THEN
    RAISE 'tunedb guard: source % is not of this account''s databases', NEW.source_id
      USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $$""",
    # Only the owner retracts in the server's own name, and he may relay retractions of others.
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_retraction() RETURNS trigger {_HEAD} AS $$
BEGIN
  IF NOT public.tunedb_is_owner() AND NOT EXISTS (SELECT FROM public.account a
    WHERE a.store = NEW.store AND a.role = session_user) THEN
    RAISE 'tunedb guard: database % is not registered with this account', NEW.store
      USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $$""",
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_account() RETURNS trigger {_HEAD} AS $$
BEGIN
  IF NEW.store = (SELECT value FROM public.meta WHERE key = 'store') THEN
    RAISE 'tunedb guard: the server''s own key belongs to its owner' USING ERRCODE = '42501';
  END IF;
  IF NOT public.tunedb_is_owner() THEN
    NEW.role := session_user;
    NEW.registered_at := NULL;
  END IF;
  NEW.registered_at := coalesce(
    NEW.registered_at, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
  RETURN NEW;
END $$""",
    # A script is code, and XGBoost does not check the bytes of a model: only the owner stores them.
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_workload() RETURNS trigger {_HEAD} AS $$
BEGIN
  IF NEW.script IS NOT NULL AND NOT public.tunedb_is_owner() THEN
    RAISE 'tunedb guard: only the owner gives a workload its script' USING ERRCODE = '42501';
  END IF;
  RETURN NEW;
END $$""",
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_model() RETURNS trigger {_HEAD} AS $$
BEGIN
  IF NEW.body IS NOT NULL AND NOT public.tunedb_is_owner() THEN
    NEW.body := NULL;
  END IF;
  RETURN NEW;
END $$""",
    # Computed features may replace merged ones; other features stay, and so does the mark of
    # existing merged ones.
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_feature() RETURNS trigger {_HEAD} AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM public.foreign_feature f
      WHERE f.program_id = OLD.program_id AND f.feature_set_id = OLD.feature_set_id)
    AND NOT public.tunedb_is_owner() THEN
    RAISE 'tunedb guard: features that were computed here are the owner''s to remove'
      USING ERRCODE = '42501';
  END IF;
  RETURN OLD;
END $$""",
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_guard_mark() RETURNS trigger {_HEAD} AS $$
BEGIN
  IF EXISTS (SELECT FROM public.feature f
      WHERE f.program_id = OLD.program_id AND f.feature_set_id = OLD.feature_set_id)
    AND NOT public.tunedb_is_owner() THEN
    RAISE 'tunedb guard: features that came with a merge keep their mark'
      USING ERRCODE = '42501';
  END IF;
  RETURN OLD;
END $$""",
    # Writers call it after retractions: it stops serving records that the rule above excludes.
    f"""
CREATE OR REPLACE FUNCTION public.tunedb_stop_serving() RETURNS bigint SECURITY DEFINER
{_HEAD} AS $$
DECLARE
  stopped bigint;
BEGIN
  UPDATE public.measurement m SET served = 0
    WHERE m.served = 1 AND EXISTS (SELECT FROM public.retraction)
      AND (m.digest IN (SELECT t.digest FROM public.retraction t)
        OR m.source_id IN (SELECT s.id FROM public.source s
          WHERE s.digest IN (SELECT t.digest FROM public.retraction t))
        OR m.session_id IN (SELECT e.id FROM public.session e
          WHERE e.digest IN (SELECT t.digest FROM public.retraction t)))
      AND public.tunedb_is_retracted(m.digest, m.source_id, m.session_id);
  GET DIAGNOSTICS stopped = ROW_COUNT;
  RETURN stopped;
END $$""",
    *(
        f"""
CREATE OR REPLACE TRIGGER tunedb_guard BEFORE {when} ON public.{table}
FOR EACH ROW EXECUTE FUNCTION public.tunedb_guard_{function}()"""
        for table, when, function in (
            ("measurement", "INSERT OR UPDATE", "measurement"),
            ("source", "INSERT", "source"),
            ("workload_alias", "INSERT", "word"),
            ("failure", "INSERT", "word"),
            ("launch", "INSERT", "word"),
            ("retraction", "INSERT", "retraction"),
            ("account", "INSERT OR UPDATE", "account"),
            ("workload", "INSERT OR UPDATE", "workload"),
            ("model", "INSERT OR UPDATE", "model"),
            ("feature", "DELETE", "feature"),
            ("foreign_feature", "DELETE", "mark"),
        )
    ),
)

#: Dropping the functions of triggers drops the triggers.
_DROP = """
    DROP FUNCTION tunedb_guard_measurement, tunedb_guard_source, tunedb_guard_word,
        tunedb_guard_retraction, tunedb_guard_account, tunedb_guard_workload, tunedb_guard_model,
        tunedb_guard_feature, tunedb_guard_mark,
        tunedb_stop_serving, tunedb_is_retracted, tunedb_mean, tunedb_may_speak, tunedb_is_owner
    CASCADE"""


def make_guards(connection: sa.Connection) -> None:
    """Create or restore the guards of a server."""
    schema = connection.execute(sa.text("SELECT quote_ident(current_schema())")).scalar_one()
    for statement in GUARDS:
        # A percent sign does not mark a parameter here.
        connection.exec_driver_sql(statement.replace("public.", f"{schema}.").replace("%", "%%"))


def upgrade() -> None:
    op.create_table(
        "account",
        sa.Column("store", Text, nullable=False),
        sa.Column("role", Text, nullable=False),
        sa.Column("registered_at", Int, nullable=False),
        sa.PrimaryKeyConstraint("store", name=op.f("pk_account")),
        sqlite_strict=True,
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name == "postgresql":
        make_guards(op.get_bind())


def downgrade() -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_DROP)
    op.drop_table("account")

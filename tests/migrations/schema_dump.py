"""The schema of a database as stable text."""

import sqlite3
from contextlib import closing

import psycopg
from sqlalchemy.engine import make_url


def dump_sqlite(path):
    """Return every object's SQL."""
    with closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(
            "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name"
        ).fetchall()
    statements = ["\n".join(filter(str.strip, sql.splitlines())) for (sql,) in rows]
    lines = "\n\n".join(f"{sql};" for sql in statements).replace("\t", "    ").splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


COLUMNS = """
    SELECT format('%s.%s: %s%s%s%s', table_name, column_name, data_type,
                  CASE is_nullable WHEN 'NO' THEN ' NOT NULL' ELSE '' END,
                  ' DEFAULT ' || column_default,
                  CASE is_identity WHEN 'YES' THEN ' IDENTITY' ELSE '' END)
    FROM information_schema.columns WHERE table_schema = 'public'
    ORDER BY table_name, ordinal_position"""
CONSTRAINTS = """
    SELECT format('%s.%s: %s', conrelid::regclass, conname, pg_get_constraintdef(oid))
    FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND contype <> 'n'
    ORDER BY conrelid::regclass::text, conname"""
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY indexname"
OTHERS = """
    SELECT format('%s %s', relkind, relname) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind NOT IN ('r', 'i')
    ORDER BY relkind, relname"""

TRIGGERS = """
    SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
    ORDER BY tgrelid::regclass::text, tgname"""
VIEWS = """
    SELECT format('%s: %s', viewname, definition) FROM pg_views WHERE schemaname = 'public'
    ORDER BY viewname"""
FUNCTIONS = """
    SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace
    ORDER BY proname"""


def connect(url):
    """Return a psycopg connection to one of SQLAlchemy's URLs."""
    plain = make_url(url).set(drivername="postgresql")
    return closing(psycopg.connect(plain.render_as_string(hide_password=False), autocommit=True))


def dump_postgresql(url):
    """Return columns, constraints, indexes and everything else in the schema ``public``."""
    parts = []
    with connect(url) as connection:
        for title, query in (
            ("columns", COLUMNS),
            ("constraints", CONSTRAINTS),
            ("indexes", INDEXES),
            ("others", OTHERS),
            ("triggers", TRIGGERS),
            ("views", VIEWS),
            ("functions", FUNCTIONS),
        ):
            lines = [row[0] for row in connection.execute(query)]
            parts.append("\n".join([f"-- {title}", *lines]))
    return "\n\n".join(parts) + "\n"


def dump_rows(url):
    """Return every row of a PostgreSQL database, table by table."""
    with connect(url) as connection:
        names = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY tablename"
        tables = [row[0] for row in connection.execute(names)]
        return {t: sorted(map(repr, connection.execute(f'SELECT * FROM "{t}"'))) for t in tables}

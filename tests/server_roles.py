"""The accounts of a server, made by the SQL of docs/sharing.md."""

import re
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url

from tunedb.storage.store import Store

PAGE = (Path(__file__).parents[1] / "docs" / "sharing.md").read_text(encoding="utf-8")
SQL = [
    [statement.strip() for statement in block.split(";") if statement.strip()]
    for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
]


@contextmanager
def team_of(server):
    """Yield a function that returns the URL of an account of a set-up as on the page.

    There are ``tunedb_owner``, the writers ``alice`` and ``mallory``, and the reader ``bob``.
    """
    administrator, rights, people = SQL
    roles = [*re.findall(r"CREATE ROLE (\w+)", PAGE), "mallory"]
    for statement in administrator:
        server.execute(statement)
    base = make_url(server.new_database(empty=True))
    server.drop(base.render_as_string(hide_password=False))

    def url(account, database="tunedb"):
        return base.set(username=account, database=database).render_as_string(hide_password=False)

    try:
        Store(url("tunedb_owner")).close()
        for statement in rights:
            server.execute_in(url("tunedb_owner"), statement)
        for statement in (*people, "CREATE ROLE mallory LOGIN IN ROLE tunedb_writers"):
            server.execute(statement)
        yield url
    finally:
        server.execute("DROP DATABASE tunedb WITH (FORCE)")
        for role in reversed(roles):
            server.execute(f"DROP ROLE IF EXISTS {role}")

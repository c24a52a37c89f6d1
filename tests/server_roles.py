"""The accounts of a server, made by the SQL of docs/sharing.md."""

import re
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy.engine import make_url

from tunedb.storage import approval
from tunedb.storage.engine import parse_url
from tunedb.storage.store import Store

PAGE = (Path(__file__).parents[1] / "docs" / "sharing.md").read_text(encoding="utf-8")
SQL = [
    [statement.strip() for statement in block.split(";") if statement.strip()]
    for block in re.findall(r"```sql\n(.*?)```", PAGE, re.DOTALL)
]


@contextmanager
def team_of(server):
    """Yield a function that returns the URL of an account of a set-up as on the page.

    There are ``tunedb_owner``, the writers ``alice`` and ``mallory``, and the reader ``bob``. The
    first set-up of a server runs the whole page; later ones copy its database.
    """
    administrator, rights, people = SQL
    base = make_url(server.new_database(empty=True))
    server.drop(base.render_as_string(hide_password=False))

    def url(account, database="tunedb"):
        return base.set(username=account, database=database).render_as_string(hide_password=False)

    owner = url("tunedb_owner")
    if server.team_key is None:
        for statement in administrator:
            server.execute(statement)
        with Store(owner) as store:
            server.team_key = store.key
        for statement in rights:
            server.execute_in(owner, statement)
        for statement in (*people, "CREATE ROLE mallory LOGIN IN ROLE tunedb_writers"):
            server.execute(statement)
        server.terminate(owner)
        server.execute("CREATE DATABASE tunedb_template TEMPLATE tunedb STRATEGY file_copy")
    else:
        server.execute(
            "CREATE DATABASE tunedb OWNER tunedb_owner TEMPLATE tunedb_template STRATEGY file_copy"
        )
        # A copy has all rights but those of the database itself.
        for statement in rights:
            if " ON DATABASE " in statement:
                server.execute(statement)
        approval.approve(parse_url(owner), server.team_key)
    try:
        yield url
    finally:
        server.execute("DROP DATABASE tunedb WITH (FORCE)")

"""Rewrite the golden files of the schema; run it after a change of the schema and read the diff.

python tests/migrations/update_goldens.py
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from postgres import running_postgres
from schema_dump import dump_postgresql, dump_sqlite

from tunedb.storage.store import Store

HERE = Path(__file__).parent


def main():
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new.db"
        Store(path).close()
        (HERE / "schema_sqlite.sql").write_text(dump_sqlite(path))
    with running_postgres() as server:
        url = server.new_database()
        (HERE / "schema_postgresql.sql").write_text(dump_postgresql(url))


if __name__ == "__main__":
    main()

"""Checks of what commands print."""


def has(text, *words):
    """Assert that a text has all the words."""
    missing = [word for word in words if word not in text]
    assert not missing, f"{missing} not in: {text}"


def row_has(row, **expected):
    """Assert that a row has these values."""
    assert {name: row[name] for name in expected} == expected


def one_line(result):
    """Assert that a command printed one line of error and nothing else; return the line."""
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr

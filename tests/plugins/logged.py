"""The messages that tunedb logs; pytest's logging plugin is off (see pyproject.toml)."""

import logging
from contextlib import contextmanager


@contextmanager
def logged(level=logging.WARNING):
    messages = []
    handler = logging.Handler(level)
    handler.emit = lambda record: messages.append(record.getMessage())
    log = logging.getLogger("tunedb")
    before = log.level
    log.addHandler(handler)
    log.setLevel(level)
    try:
        yield messages
    finally:
        log.removeHandler(handler)
        log.setLevel(before)

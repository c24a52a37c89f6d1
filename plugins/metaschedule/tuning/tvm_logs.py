"""Redirection of TVM's tuning logs to files."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["logs_in_files", "task_logger"]

_LOGGER = "tvm.s_tir.meta_schedule"


@contextmanager
def logs_in_files() -> Iterator[None]:
    """Write TVM's logs of a block to files only, and restore its loggers.

    For each run, TVM adds a handler for stdout, at the logger's level of that moment, and one for
    each file in the run's directory. It never removes them.
    """
    logger = logging.getLogger(_LOGGER)
    before = logger.level, logger.propagate, list(logger.handlers)
    # TVM fails on handlers without a name, such as pytest's.
    logger.handlers.clear()
    # TVM logs at most errors.
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for task in _loggers():
            for handler in list(task.handlers):
                task.removeHandler(handler)
                handler.close()
        logger.setLevel(before[0])
        logger.propagate = before[1]
        logger.handlers.extend(before[2])


def task_logger(number: int, tasks: int, name: str) -> logging.Logger | None:
    """Return TVM's logger of a task, or None (see ``logging.py`` of TVM)."""
    digits = len(str(tasks - 1))
    full = f"{_LOGGER}.logging.task_{number:0{digits}d}_{name[:100]}"
    logger = logging.root.manager.loggerDict.get(full)
    return logger if isinstance(logger, logging.Logger) else None


def _loggers() -> Iterator[logging.Logger]:
    """Yield TVM's logger of tuning and the loggers of its tasks."""
    for name, logger in list(logging.root.manager.loggerDict.items()):
        is_tuning = name == _LOGGER or name.startswith(f"{_LOGGER}.logging.task_")
        if is_tuning and isinstance(logger, logging.Logger):
            yield logger

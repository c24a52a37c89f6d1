"""New interpreters."""

import os
import subprocess
import sys


def printed(*words, **options):
    """Return what a new interpreter prints that gets words of the command line."""
    options = {"capture_output": True, "text": True, "check": False, "timeout": 300} | options
    done = subprocess.run([sys.executable, *map(str, words)], **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def end(*_):
    """End this process without a word, as the system does where memory is short."""
    os._exit(9)

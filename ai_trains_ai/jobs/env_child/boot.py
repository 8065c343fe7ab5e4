"""The first module of the sandboxed interpreter: fix the hash seed, then serve."""

from __future__ import annotations

import os
import sys


def start() -> None:
    """Serve a job's environment on standard input and output. Does not return.

    Strings hash differently in every process unless a seed is fixed before the interpreter starts, and a
    job's sets would be in another order at every run. The sandbox starts programs with an empty environment,
    so the interpreter starts itself once more, before it imports anything.
    """
    if sys.flags.hash_randomization:
        if os.environ.get("PYTHONHASHSEED") == "0":
            raise RuntimeError("the hash seed cannot be fixed: was Python started with -E or -I?")
        command = [sys.executable, *sys.orig_argv[1:]]
        os.execve(sys.executable, command, {**os.environ, "PYTHONHASHSEED": "0"})
    from .main import main

    main()

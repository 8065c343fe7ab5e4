"""No sandbox at all, for those who asked for it by name: a job's code runs with all the rights of this user.

What is left is housekeeping: a directory for the job's files, an empty environment, resource limits, and an
end for the process group when we end. Results are marked untrusted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

from ai_trains_ai.sandbox.base import SandboxLimits, check_start
from ai_trains_ai.sandbox.process import SandboxedProcess
from ai_trains_ai.sandbox.spawn import spawn, spec

LEVEL = "unsafe"


class Unsafe:
    level = LEVEL
    trusted = False

    @property
    def python(self) -> str:
        return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)

    def start(
        self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: SandboxLimits
    ) -> SandboxedProcess:
        check_start(argv, files)
        stage = spec(argv, supervise=True)
        stage["files"] = dict(files)
        stage["rlimits"] = {"RLIMIT_CPU": limits.cpu_seconds, "RLIMIT_CORE": 0}
        if sys.platform == "linux":  # macOS refuses to limit address space
            stage["rlimits"]["RLIMIT_AS"] = limits.memory_bytes
        return spawn(stage, stderr_bytes=limits.stderr_bytes)

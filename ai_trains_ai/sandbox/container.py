"""Level 2: a container of docker or podman, made of this machine's own Python. No image is downloaded on
Linux."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence

from ai_trains_ai.errors import boundary
from ai_trains_ai.sandbox import seccomp
from ai_trains_ai.sandbox.base import LevelUnavailable, SandboxLimits, check_start
from ai_trains_ai.sandbox.process import SandboxedProcess
from ai_trains_ai.sandbox.runtime import Runtime, find_runtime
from ai_trains_ai.sandbox.spawn import spawn, spec

LEVEL = "container"
ENGINES = ("docker", "podman")
JOB_FOLDER = "/job"
SCRATCH = "/tmp"
_NAME = "localhost/ai-trains-ai-sandbox"
_ENGINE_VARIABLES = (
    *("HOME", "PATH", "XDG_RUNTIME_DIR"),
    *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST"),
)
"""What the engine's own command may need of our environment; the container gets none of it."""
_SECONDS = 120
_GRACE_SECONDS = 30.0
"""To stop and remove a container."""
_OFFICIAL_PYTHON = "/usr/local/bin/python3"


class Container:
    level = LEVEL
    trusted = True

    def __init__(self, engine: str | None = None, image: str | None = None) -> None:
        """engine: path of docker or podman; by default the first that is installed and answers.
        image: one with Python at /usr/local/bin/python3, as the official ones. By default, on Linux, an
        image is made of the running Python; elsewhere the official one has to be on the machine already.

        Raises LevelUnavailable.
        """
        self._environment = {name: os.environ[name] for name in _ENGINE_VARIABLES if name in os.environ}
        if not seccomp.supported():
            raise LevelUnavailable(LEVEL, "no seccomp table for this processor", "use x86_64 or 64-bit Arm")
        self._engine = engine or self._find_engine()
        self._podman = os.path.basename(self._engine).startswith("podman")
        if image is None and sys.platform == "linux":
            self._image, self._python = self._make_image()
        else:
            self._image = image or "python:{}.{}-slim".format(*sys.version_info[:2])
            self._python = _OFFICIAL_PYTHON
            self._require(self._image)

    def advice(self) -> str:
        """For a level that starts but does not hold."""
        return f"see what `{self._engine} run` says on this machine"

    @property
    def python(self) -> str:
        return self._python

    def start(
        self, argv: Sequence[str], *, files: Mapping[str, bytes], limits: SandboxLimits
    ) -> SandboxedProcess:
        check_start(argv, files)
        policy = seccomp.Policy(fork=limits.processes > 1, write=limits.scratch_bytes > 0)
        name = f"ai-trains-ai-{os.urandom(8).hex()}"
        stage = spec([*self._run_command(name, limits), self._image, *argv], supervise=True)
        stage["environment"] = self._environment
        stage["files"] = dict(files)
        stage["own_files"] = {"seccomp.json": json.dumps(seccomp.oci_profile(policy)).encode()}
        now = ["--time", "0"] if self._podman else []
        stage["cleanup"] = [self._engine, "rm", "--force", *now, name]
        stage["check_started"] = [self._engine, "inspect", "--format", "{{.State.StartedAt}}", name]
        return spawn(stage, stderr_bytes=limits.stderr_bytes, grace_seconds=_GRACE_SECONDS)

    def _run_command(self, name: str, limits: SandboxLimits) -> list[str]:
        tasks = limits.threads + limits.processes
        command = [self._engine, "run", "--name", name, "--interactive", "--pull", "never"]
        command += [
            "--network",
            "none",
            "--read-only",
            "--ipc",
            "none",
            "--hostname",
            "sandbox",
            "--user",
            "65534:65534",
        ]
        command += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        command += ["--security-opt", "seccomp={folder}/seccomp.json"]
        command += ["--memory", str(limits.memory_bytes), "--memory-swap", str(limits.memory_bytes)]
        command += ["--pids-limit", str(tasks), "--log-driver", "none", "--entrypoint", ""]
        command += ["--volume", f"{{folder}}/job:{JOB_FOLDER}:ro,Z", "--workdir", JOB_FOLDER]
        for kind, value in (
            ("cpu", limits.cpu_seconds),
            ("data", limits.memory_bytes),  # private memory: the job sees a MemoryError, not the OOM killer
            ("nofile", limits.open_files),
            ("fsize", limits.scratch_bytes),
            ("nproc", tasks),
            ("core", 0),
            ("memlock", 0),
            ("msgqueue", 0),
        ):
            command += ["--ulimit", f"{kind}={value}:{value}"]
        if self._podman:
            command += ["--read-only-tmpfs=false", "--http-proxy=false"]
        if limits.scratch_bytes:
            command += ["--tmpfs", f"{SCRATCH}:rw,noexec,nosuid,nodev,mode=1777,size={limits.scratch_bytes}"]
        return command

    def _find_engine(self) -> str:
        reasons = []
        for name in ENGINES:
            path = shutil.which(name)
            if path is None:
                reasons.append(f"{name} is not installed")
                continue
            try:
                self._call(path, "info")
            except (OSError, subprocess.SubprocessError) as error:
                reasons.append(f"{name} does not answer ({_reason(error)})")
                continue
            return path
        raise LevelUnavailable(LEVEL, "; ".join(reasons), "install and start docker or podman")

    def _require(self, image: str) -> None:
        try:
            self._call(self._engine, "image", "inspect", image)
        except (OSError, subprocess.SubprocessError) as error:
            raise LevelUnavailable(
                LEVEL, f"the image {image} is not on this machine", f"run: {self._engine} pull {image}"
            ) from error

    def _make_image(self) -> tuple[str, str]:
        """Import the runtime as an image, unless that was done before. Returns (image, path of Python in
        it)."""
        try:
            runtime = find_runtime()
        except LookupError as error:
            raise LevelUnavailable(LEVEL, str(error), "install a Python 3.11 or newer") from error
        image = f"{_NAME}:{_fingerprint(runtime)}"
        try:
            self._require(image)
        except LevelUnavailable:
            with boundary("sandbox"):
                try:
                    self._call(self._engine, "import", "-", image, stdin=archive(runtime))
                except (OSError, subprocess.SubprocessError) as error:
                    raise LevelUnavailable(
                        LEVEL,
                        f"no image can be made ({_reason(error)})",
                        f"see what {self._engine} import says",
                    ) from error
        return image, runtime.python

    def _call(self, *argv: str, stdin: bytes = b"") -> None:
        subprocess.run(
            argv, input=stdin, env=self._environment, capture_output=True, timeout=_SECONDS, check=True
        )


def archive(runtime: Runtime) -> bytes:
    """The runtime as a tar archive. Times are kept: compiled caches are valid only with their source's."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, target in runtime.links:
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
        for path in (*runtime.files, *_library(runtime)):
            tar.add(path, path.lstrip("/"), recursive=False, filter=_plain)
        folder = tarfile.TarInfo(JOB_FOLDER.lstrip("/"))
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        tar.addfile(folder)
    return buffer.getvalue()


def _library(runtime: Runtime) -> Iterator[str]:
    """Directories and files of the standard library, but for third-party packages and links."""
    for top in runtime.directories:
        for base, directories, names in os.walk(top):
            directories[:] = sorted(d for d in directories if os.path.join(base, d) not in runtime.hidden)
            yield base
            yield from (
                path for name in sorted(names) if not os.path.islink(path := os.path.join(base, name))
            )


def _plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    return entry


def _fingerprint(runtime: Runtime) -> str:
    digest = hashlib.sha256()
    for path in (*runtime.files, *runtime.directories):
        status = os.stat(path)
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _reason(error: Exception) -> str:
    stderr = getattr(error, "stderr", None)
    lines = (stderr or b"").decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else str(error)

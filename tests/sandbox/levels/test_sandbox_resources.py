"""Memory, processor time, descriptors, floods of output: each is bounded, and its excess hits the job
alone."""

from __future__ import annotations

import os
import resource
import time

from ai_trains_ai.sandbox.base import SandboxLimits

MIB = 1 << 20


def test_a_memory_bomb_ends_in_a_memory_error(box):
    result = box.run(
        """
import mmap
held, error = [], None
try:
    while len(held) < 1024:
        held.append(bytearray(b"x") * (1 << 20))
except MemoryError:
    error = "MemoryError"
got = len(held)
held.clear()
tell(error=error, got=got, at_once=attempt(bytearray, 1 << 40),
     mapped=attempt(mmap.mmap, -1, 1 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
""",
        limits={"memory_bytes": 256 * MIB},
    ).told
    assert result["error"] == "MemoryError"
    assert 100 <= result["got"] <= 256
    assert result["at_once"] == "MemoryError"
    assert result["mapped"] == "ENOMEM"


def test_memory_outside_of_the_address_space_is_bounded(box):
    """Shared mappings, files in memory and pipe buffers do not count as private memory everywhere."""
    outcome = box.run(
        """
import fcntl, mmap
shared, error = [], None
try:
    for _ in range(64):
        piece = mmap.mmap(-1, 16 << 20, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
        for page in range(0, len(piece), 4096):
            piece[page] = 1
        shared.append(piece)
except OSError as problem:
    error = errno.errorcode[problem.errno]
tell(error=error, file=attempt(os.memfd_create, "bomb"), pipe=attempt(lambda: fcntl.fcntl(0, 1031, 1 << 20)))
""",
        limits={"memory_bytes": 256 * MIB},
    )
    if box.level == "container":
        assert outcome.code == 137, "killed by its memory control group"
        return
    assert outcome.told == {"error": "ENOMEM", "file": "EPERM", "pipe": "EPERM"}


def test_an_endless_loop_ends_with_its_processor_time(box):
    outcome = box.run("import time\nwhile time.process_time() < 4: pass\ntell()", limits={"cpu_seconds": 1})
    assert (outcome.code, outcome.stdout, outcome.error) == (137, "", None)


def test_descriptors_are_bounded(box):
    result = box.run(
        """
held = []
def take():
    while len(held) < 10000:
        held.append(os.dup(0))
error = attempt(take)
for fd in held: os.close(fd)
tell(error=error, got=len(held))
""",
        limits={"open_files": 40},
    ).told
    assert result == {"error": "EMFILE", "got": 37}


def test_no_core_is_dumped(box):
    result = box.run("import resource; tell(core=resource.getrlimit(resource.RLIMIT_CORE))").told
    assert result["core"] == [0, 0]


def test_a_flood_of_errors_is_cut_and_its_end_is_kept(box):
    outcome = box.run(
        """
for _ in range(200):
    os.write(2, b"flood " * 2000)
print("the last words", file=sys.stderr, flush=True)
os._exit(4)
""",
        limits={"stderr_bytes": 5000},
    )
    assert outcome.code == 4
    assert outcome.stderr.endswith("the last words\n")
    assert outcome.stderr.startswith("[")
    assert "bytes dropped]" in outcome.stderr
    assert len(outcome.stderr) < 5100


def test_a_flood_of_output_that_nobody_reads_blocks_the_job_only(sandbox):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    source = "import os\nos.write(2, b'up')\nwhile True: os.write(1, bytes(1 << 20))"
    argv = [sandbox.python, "-I", "-S", "-B", "-c", source]
    with sandbox.start(argv, files={}, limits=SandboxLimits()) as process:
        deadline = time.monotonic() + 10
        while process.stderr() != "up" and time.monotonic() < deadline:
            time.sleep(0.02)
        time.sleep(0.2)
        assert process.poll() is None
        assert len(os.read(process.stdout.fileno(), 1 << 22)) <= 1 << 20
        process.kill()
        assert process.wait(10) == 137
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024, "KiB"

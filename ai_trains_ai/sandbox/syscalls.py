"""System calls that a job's process may make, with their numbers on x86_64 and on 64-bit Arm.

An allowlist: what is not here is refused, so a system call of a future kernel is refused as well.
Numbers are those of the Linux headers `asm/unistd_64.h` and `asm-generic/unistd.h`; None where an
architecture has no such call. A test compares them with the headers of the machine it runs on.
"""

from __future__ import annotations

Table = dict[str, tuple[int | None, int | None]]

FIRST_SHARED = 424
"""From here on every architecture has the same numbers, and C libraries fall back on ENOSYS."""

FILES: Table = {
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "preadv": (295, 69),
    "pwritev": (296, 70),
    "close": (3, 57),
    "close_range": (436, 436),
    "open": (2, None),
    "openat": (257, 56),
    "lseek": (8, 62),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "fstat": (5, 80),
    "stat": (4, None),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "statfs": (137, 43),
    "fstatfs": (138, 44),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getdents": (78, None),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "fchdir": (81, 50),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "fadvise64": (221, 223),
    "sendfile": (40, 71),
    "umask": (95, 166),
}
"""Reading what the file system shows, and the three pipes."""

WAITING: Table = {
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "epoll_create": (213, None),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_wait": (232, None),
    "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441),
    "eventfd": (284, None),
    "eventfd2": (290, 19),
    "timerfd_create": (283, 85),
    "timerfd_settime": (286, 86),
    "timerfd_gettime": (287, 87),
    "signalfd": (282, None),
    "signalfd4": (289, 74),
    "pause": (34, None),
    "restart_syscall": (219, 128),
}
"""Waiting for something."""

MEMORY: Table = {
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "brk": (12, 214),
    "msync": (26, 227),
    "mincore": (27, 232),
    "membarrier": (324, 283),
}
"""The process's own address space. No memfd: its pages are outside RLIMIT_AS."""

THREADS: Table = {
    "clone": (56, 220),
    "futex": (202, 98),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "set_tid_address": (218, 96),
    "rseq": (334, 293),
    "gettid": (186, 178),
    "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
    "arch_prctl": (158, None),
    "getcpu": (309, 168),
}
"""Threads of the same process; `clone` is filtered by its flags."""

SIGNALS: Table = {
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137),
    "rt_sigsuspend": (130, 133),
    "sigaltstack": (131, 132),
    "alarm": (37, None),
    "setitimer": (38, 103),
    "getitimer": (36, 102),
}
"""Handling signals, not sending them."""

TIME: Table = {
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "clock_nanosleep": (230, 115),
    "nanosleep": (35, 101),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "times": (100, 153),
    "timer_create": (222, 107),
    "timer_settime": (223, 110),
    "timer_gettime": (224, 108),
    "timer_delete": (226, 111),
    "timer_getoverrun": (225, 109),
}
"""Reading clocks and own timers."""

ITSELF: Table = {
    "exit": (60, 93),
    "exit_group": (231, 94),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "getpgrp": (111, None),
    "getpgid": (121, 155),
    "getsid": (124, 156),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "prlimit64": (302, 261),
    "getpriority": (140, 141),
    "uname": (63, 160),
    "sysinfo": (99, 179),
    "getrandom": (318, 278),
    "execve": (59, 221),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "prctl": (157, 167),
    "capget": (125, 90),
}
"""What a process asks about itself; `prctl` and `prlimit64` are filtered by their arguments."""

PAIRS: Table = {
    "socketpair": (53, 199),
    "sendto": (44, 206),
    "recvfrom": (45, 207),
    "sendmsg": (46, 211),
    "recvmsg": (47, 212),
    "shutdown": (48, 210),
    "getsockopt": (55, 209),
    "setsockopt": (54, 208),
    "getsockname": (51, 204),
    "getpeername": (52, 205),
}
"""A connected pair of stream sockets: asyncio wakes itself up through one."""

FORKING: Table = {
    "fork": (57, None),
    "vfork": (58, None),
}
"""New processes, for a sandbox that allows more than one."""

KILLING: Table = {
    "kill": (62, 129),
    "tkill": (200, 130),
    "tgkill": (234, 131),
}
"""Sending signals, where something else keeps them inside."""

WRITING: Table = {
    "creat": (85, None),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "truncate": (76, 45),
    "ftruncate": (77, 46),
    "fallocate": (285, 47),
    "fsync": (74, 82),
    "fdatasync": (75, 83),
    "flock": (73, 32),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "utimensat": (280, 88),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "copy_file_range": (326, 285),
}
"""Changing files, for a sandbox that has a scratch directory."""

ALWAYS: Table = {**FILES, **WAITING, **MEMORY, **THREADS, **SIGNALS, **TIME, **ITSELF, **PAIRS}

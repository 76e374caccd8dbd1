"""The system call filter: refuses calls that the model's programs do not need.

The namespaces already hide the host. The filter blocks rarely used parts of the kernel in
which escapes have been found, memory that is charged to no process (memfd, System V,
shared mappings without a file), sockets other than socket pairs, and calls that would
change the priority or limits of the keeper, which runs as the same user.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

from bough.sandbox.inside import kernel

ARCHITECTURES = {"x86_64": (0, 0xC000_003E), "aarch64": (1, 0xC000_00B7)}
X32 = 0x4000_0000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, REFUSE = 0x7FFF_0000, 0x8000_0000, 0x0005_0000
NUMBER, ARCH, FIRST_ARGUMENT, FOURTH_ARGUMENT = 0, 4, 16, 40
NAMESPACES = (
    kernel.CLONE_NEWNS | kernel.CLONE_NEWCGROUP | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC
    | kernel.CLONE_NEWUSER | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET
)  # fmt: skip

# name: (x86_64, aarch64); None where the architecture has no such call.
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # other processes
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "kcmp": (312, 272),
    "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "move_pages": (279, 239),
    "migrate_pages": (256, 238), "setpriority": (141, 140), "ioprio_set": (251, 30),
    # mounts and namespaces
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268),
    "unshare": (272, 97), "open_tree": (428, 428), "move_mount": (429, 429), "fsopen": (430, 430),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442),
    "statmount": (457, 457), "listmount": (458, 458), "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    # the network
    "socket": (41, 198), "setsockopt": (54, 208),
    # memory that is charged to no process
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "shmat": (30, 196),
    "msgget": (68, 186), "semget": (64, 190), "mq_open": (240, 180),
    "vmsplice": (278, 75), "splice": (275, 76), "tee": (276, 77),
    "inotify_init": (253, None), "inotify_init1": (294, 26), "inotify_add_watch": (254, 27),
    "io_setup": (206, 0), "landlock_create_ruleset": (444, 444), "landlock_add_rule": (445, 445),
    # timers that could wake a stopped process
    "timer_create": (222, 107),
    # large or rarely used parts of the kernel
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "fanotify_init": (300, 262), "personality": (135, 92),
    "lookup_dcookie": (212, 18), "modify_ldt": (154, None), "uselib": (134, None),
    # the machine itself
    "kexec_load": (246, 104), "kexec_file_load": (320, 294), "init_module": (175, 105),
    "delete_module": (176, 106), "finit_module": (313, 273), "swapon": (167, 224), "swapoff": (168, 225),
    "reboot": (169, 142), "sethostname": (170, 161), "setdomainname": (171, 162), "settimeofday": (164, 170),
    "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "acct": (163, 89),
    "syslog": (103, 116), "vhangup": (153, 58), "iopl": (172, None), "ioperm": (173, None),
}  # fmt: skip
# Calls that take a process: allowed only for the calling process itself.
ABOUT_A_PROCESS = {
    "prlimit64": (302, 261), "sched_setattr": (314, 274), "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118), "sched_setaffinity": (203, 122),
}  # fmt: skip
CLONE, CLONE3 = (56, 220), 435
MMAP, MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = (9, 222), 0x01, 0x20, 0x4_0000


def program(machine: str | None = None) -> bytes:
    """The filter program in the format of the kernel."""
    machine = machine or platform.machine()
    if machine not in ARCHITECTURES:
        raise OSError(0, f"no table of system calls for {machine}")
    column, architecture = ARCHITECTURES[machine]
    lines = [
        _line(LOAD, ARCH),
        _line(EQUAL, architecture, 1, 0),
        _line(RETURN, KILL),
        _line(LOAD, NUMBER),
    ]
    if machine == "x86_64":
        lines += [_line(AT_LEAST, X32, 0, 1), _line(RETURN, KILL)]
    # Without clone3 the C library falls back to clone, whose flags a filter can read.
    lines += [_line(EQUAL, CLONE3, 0, 1), _line(RETURN, REFUSE | errno.ENOSYS)]
    for numbers in REFUSED.values():
        if (refused := numbers[column]) is not None:
            lines += [_line(EQUAL, refused, 0, 1), _line(RETURN, REFUSE | errno.EPERM)]
    lines += [
        _line(EQUAL, CLONE[column], 0, 4),
        _line(LOAD, FIRST_ARGUMENT),
        _line(ANY_BIT, NAMESPACES, 0, 1),
        _line(RETURN, REFUSE | errno.EPERM),
        _line(RETURN, ALLOW),
    ]
    # Anonymous shared memory stays allocated after its pages are released, and huge pages are counted separately.
    lines += [
        _line(EQUAL, MMAP[column], 0, 6),
        _line(LOAD, FOURTH_ARGUMENT),
        _line(ANY_BIT, MAP_HUGETLB, 2, 0),
        _line(ANY_BIT, MAP_ANONYMOUS, 0, 2),
        _line(ANY_BIT, MAP_SHARED, 0, 1),
        _line(RETURN, REFUSE | errno.EPERM),
        _line(RETURN, ALLOW),
    ]
    for numbers in ABOUT_A_PROCESS.values():
        lines += [
            _line(EQUAL, numbers[column], 0, 4),
            _line(LOAD, FIRST_ARGUMENT),
            _line(EQUAL, 0, 1, 0),
            _line(RETURN, REFUSE | errno.EPERM),
            _line(RETURN, ALLOW),
        ]
    lines.append(_line(RETURN, ALLOW))
    return b"".join(lines)


def install(filter_program: bytes) -> None:
    """Installs the filter permanently for this process and all its descendants."""

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("lines", ctypes.c_char_p)]

    description = Program(len(filter_program) // 8, filter_program)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.byref(description))


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)

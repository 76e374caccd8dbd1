"""The filter, run by hand: what the kernel would answer to each call."""

import errno
import struct

import pytest

from bough.sandbox.inside import kernel, seccomp


def decision(program: bytes, number: int, architecture: int, first: int = 0, fourth: int = 0) -> int:
    """A little machine for the few instructions that the filter is made of."""
    data = {seccomp.NUMBER: number, seccomp.ARCH: architecture}
    data |= {seccomp.FIRST_ARGUMENT: first, seccomp.FOURTH_ARGUMENT: fourth}
    lines = list(struct.iter_unpack("=HBBI", program))
    place = held = 0
    while True:
        code, if_true, if_false, value = lines[place]
        place += 1
        if code == seccomp.LOAD:
            held = data[value]
        elif code == seccomp.RETURN:
            return value
        else:
            tests = {
                seccomp.EQUAL: held == value,
                seccomp.AT_LEAST: held >= value,
                seccomp.ANY_BIT: bool(held & value),
            }
            place += if_true if tests[code] else if_false


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_refused_calls_are_refused_and_others_are_not(machine: str, column: int):
    program, architecture = seccomp.program(machine), seccomp.ARCHITECTURES[machine][1]
    refused = {number for numbers in seccomp.REFUSED.values() if (number := numbers[column]) is not None}
    looked_at = {numbers[column] for numbers in seccomp.ABOUT_A_PROCESS.values()} | {seccomp.CLONE[column], 435}
    for number in range(500):
        answer = decision(program, number, architecture)
        if number in refused:
            assert answer == seccomp.REFUSE | errno.EPERM
        elif number not in looked_at:
            assert answer == seccomp.ALLOW
    assert decision(program, seccomp.CLONE3, architecture) == seccomp.REFUSE | errno.ENOSYS


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_threads_and_forks_are_allowed_and_namespaces_are_not(machine: str, column: int):
    program, architecture = seccomp.program(machine), seccomp.ARCHITECTURES[machine][1]
    for flags in (17, 0x003D_0F00):  # a fork, a thread of the C library's
        assert decision(program, seccomp.CLONE[column], architecture, flags) == seccomp.ALLOW
    for flag in (kernel.CLONE_NEWUSER, kernel.CLONE_NEWNS, kernel.CLONE_NEWPID, kernel.CLONE_NEWNET):
        assert decision(program, seccomp.CLONE[column], architecture, flag | 17) == seccomp.REFUSE | errno.EPERM


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_limits_are_ones_own_alone(machine: str, column: int):
    program, architecture = seccomp.program(machine), seccomp.ARCHITECTURES[machine][1]
    for numbers in seccomp.ABOUT_A_PROCESS.values():
        assert decision(program, numbers[column], architecture, 0) == seccomp.ALLOW
        assert decision(program, numbers[column], architecture, 1) == seccomp.REFUSE | errno.EPERM


@pytest.mark.parametrize(("machine", "column"), [("x86_64", 0), ("aarch64", 1)])
def test_shared_memory_needs_a_file_and_huge_pages_are_refused(machine: str, column: int):
    program, architecture = seccomp.program(machine), seccomp.ARCHITECTURES[machine][1]
    shared, private, anonymous, huge = 0x01, 0x02, 0x20, 0x4_0000
    refused = [shared | anonymous, 0x03 | anonymous, private | anonymous | huge, shared | huge]
    for flags in refused:
        answer = decision(program, seccomp.MMAP[column], architecture, fourth=flags)
        assert answer == seccomp.REFUSE | errno.EPERM
    for flags in (shared, private, private | anonymous, private | anonymous | 0x2_0000):
        assert decision(program, seccomp.MMAP[column], architecture, fourth=flags) == seccomp.ALLOW


def test_another_architectures_calls_kill():
    assert decision(seccomp.program("x86_64"), 1, 0x4000_0003) == seccomp.KILL  # 32 bit
    assert decision(seccomp.program("x86_64"), seccomp.X32 | 1, 0xC000_003E) == seccomp.KILL
    with pytest.raises(OSError, match="no table of system calls for riscv64"):
        seccomp.program("riscv64")

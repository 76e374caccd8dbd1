"""The filter, run by hand: what the kernel would answer to each call."""

import errno
import struct
from collections.abc import Callable

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


@pytest.fixture(params=["x86_64", "aarch64"])
def filtered(request: pytest.FixtureRequest) -> tuple[Callable[..., int], int]:
    """What the filter answers to a call, and the column of its number, on each architecture."""
    program, (column, architecture) = seccomp.program(request.param), seccomp.ARCHITECTURES[request.param]
    return lambda number, *more: decision(program, number, architecture, *more), column


def test_refused_calls_are_refused_and_others_are_not(filtered: tuple[Callable[..., int], int]):
    answer, column = filtered
    refused = {number for numbers in seccomp.REFUSED.values() if (number := numbers[column]) is not None}
    looked_at = {numbers[column] for numbers in seccomp.ABOUT_A_PROCESS.values()} | {seccomp.CLONE[column], 435}
    for number in range(500):
        if number in refused:
            assert answer(number) == seccomp.REFUSE | errno.EPERM
        elif number not in looked_at:
            assert answer(number) == seccomp.ALLOW
    assert answer(seccomp.CLONE3) == seccomp.REFUSE | errno.ENOSYS


def test_threads_and_forks_are_allowed_and_namespaces_are_not(filtered: tuple[Callable[..., int], int]):
    answer, column = filtered
    for flags in (17, 0x003D_0F00):  # a fork, a thread of the C library's
        assert answer(seccomp.CLONE[column], flags) == seccomp.ALLOW
    for flag in (kernel.CLONE_NEWUSER, kernel.CLONE_NEWNS, kernel.CLONE_NEWPID, kernel.CLONE_NEWNET):
        assert answer(seccomp.CLONE[column], flag | 17) == seccomp.REFUSE | errno.EPERM


def test_limits_are_ones_own_alone(filtered: tuple[Callable[..., int], int]):
    answer, column = filtered
    for numbers in seccomp.ABOUT_A_PROCESS.values():
        assert answer(numbers[column], 0) == seccomp.ALLOW
        assert answer(numbers[column], 1) == seccomp.REFUSE | errno.EPERM


def test_shared_memory_needs_a_file_and_huge_pages_are_refused(filtered: tuple[Callable[..., int], int]):
    answer, column = filtered
    shared, private, anonymous, huge = 0x01, 0x02, 0x20, 0x4_0000
    refused = [shared | anonymous, 0x03 | anonymous, private | anonymous | huge, shared | huge]
    for flags in refused:
        assert answer(seccomp.MMAP[column], 0, flags) == seccomp.REFUSE | errno.EPERM
    for flags in (shared, private, private | anonymous, private | anonymous | 0x2_0000):
        assert answer(seccomp.MMAP[column], 0, flags) == seccomp.ALLOW


def test_another_architectures_calls_kill():
    assert decision(seccomp.program("x86_64"), 1, 0x4000_0003) == seccomp.KILL  # 32 bit
    assert decision(seccomp.program("x86_64"), seccomp.X32 | 1, 0xC000_003E) == seccomp.KILL
    with pytest.raises(OSError, match="no table of system calls for riscv64"):
        seccomp.program("riscv64")

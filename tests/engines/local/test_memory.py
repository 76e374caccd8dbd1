import pytest
import torch

from bough.engines.local import reader
from bough.engines.local.reader import free_bytes

CPU = torch.device("cpu")
GIB = 1 << 30


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 8 GiB available, in a container that may take 6 GiB and has 2; call it to write other files."""
    monkeypatch.setattr(reader, "Path", lambda path: tmp_path / path.lstrip("/"))
    places = {
        "meminfo": tmp_path / "proc/meminfo",
        "most": tmp_path / "sys/fs/cgroup/memory.max",
        "used": tmp_path / "sys/fs/cgroup/memory.current",
    }

    def write(**files):
        for name, text in files.items():
            places[name].parent.mkdir(parents=True, exist_ok=True)
            places[name].unlink(missing_ok=True)
            if text is not None:
                places[name].write_text(text)

    available = "MemTotal: 33554432 kB\nMemFree: 1024 kB\nMemAvailable: 8388608 kB\n"
    write(meminfo=available, most=f"{6 * GIB}\n", used=f"{2 * GIB}\n")
    return write


def test_half_of_what_the_container_may_still_take_is_used(machine):
    assert free_bytes(CPU) == 2 * GIB


def test_half_of_what_is_available_is_used_where_that_is_less(machine):
    machine(meminfo="MemTotal: 33554432 kB\nMemAvailable: 1048576 kB\n")
    assert free_bytes(CPU) == GIB // 2


@pytest.mark.parametrize("limit", ["max\n", None, "what\n"])
def test_without_a_limit_what_is_available_counts(machine, limit):
    machine(most=limit)
    assert free_bytes(CPU) == 4 * GIB


def test_a_container_that_has_taken_too_much_leaves_nothing(machine):
    machine(used=f"{7 * GIB}\n")
    assert free_bytes(CPU) == 0


@pytest.mark.parametrize("meminfo", [None, "MemFree: 1024 kB\n"])
def test_a_machine_that_does_not_say_is_taken_for_a_laptop_with_8_gib(machine, meminfo):
    machine(meminfo=meminfo, most=None)
    assert free_bytes(CPU) == 4 * GIB


@pytest.mark.parametrize(
    ("fraction", "reserved", "expected"), [(1.0, 0, 85), (0.5, 0, 59.5), (0.5, 30, 34), (0.1, 30, 0)]
)
def test_of_a_gpu_most_is_taken_but_no_more_than_this_process_may_have(monkeypatch, fraction, reserved, expected):
    """It has 100 GiB free of 140; workers of a cluster that share it have a fraction each."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: fraction)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: reserved * GIB)
    assert free_bytes(torch.device("cuda")) == pytest.approx(expected * GIB)


@pytest.mark.parametrize(("training", "expected"), [(40, 51), (90, 25.5), (1000, 25.5)])
def test_of_a_gpu_training_keeps_its_share_as_far_as_episodes_have_a_third(monkeypatch, training, expected):
    """Of 100 GiB: 85% of what training leaves, or of 30 GiB."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: 1.0)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: 0)
    assert free_bytes(torch.device("cuda"), training * GIB) == pytest.approx(expected * GIB)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_fraction_of_a_real_gpu():
    device = torch.device("cuda", 0)
    try:
        torch.cuda.set_per_process_memory_fraction(1.0, device)  # the environment may have set another
        whole = free_bytes(device)
        torch.cuda.set_per_process_memory_fraction(0.1, device)
        assert 0 < free_bytes(device) < whole
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def test_this_machine_has_some():
    assert free_bytes(CPU) > 0

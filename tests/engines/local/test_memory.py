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


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 2),  # what the container may still take
        ({"meminfo": "MemTotal: 33554432 kB\nMemAvailable: 1048576 kB\n"}, 0.5),
        ({"most": "max\n"}, 4),  # no limit: what is available counts
        ({"most": None}, 4),
        ({"used": f"{7 * GIB}\n"}, 0),
        ({"meminfo": None, "most": None}, 4),  # a machine that does not say is taken for a laptop with 8 GiB
    ],
)
def test_half_of_what_is_free_is_used(machine, files, expected):
    machine(**files)
    assert free_bytes(CPU) == expected * GIB


@pytest.mark.parametrize(
    ("fraction", "reserved", "training", "expected"),
    [(1.0, 0, 0, 85), (0.5, 0, 0, 59.5), (0.5, 30, 0, 34), (0.1, 30, 0, 0), (1.0, 0, 40, 51), (1.0, 0, 90, 25.5)],
)
def test_of_a_gpu_most_is_taken_that_training_leaves_and_no_more_than_this_process_may_have(
    monkeypatch, fraction, reserved, training, expected
):
    """Of 100 GiB free of 140. Workers of a cluster that share it have a fraction each; episodes have 30% at least."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100 * GIB, 140 * GIB))
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda index: fraction)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda index: reserved * GIB)
    assert free_bytes(torch.device("cuda"), training * GIB) == pytest.approx(expected * GIB)

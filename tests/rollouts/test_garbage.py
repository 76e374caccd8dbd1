import subprocess
import sys

PROGRAM = """
import gc
from bough.rollouts.runner import spare_what_is_loaded
spare_what_is_loaded()
frozen = gc.get_freeze_count()
kept = [[] for _ in range(1000)]
spare_what_is_loaded()
print(frozen > 1000, gc.get_freeze_count() == frozen, gc.get_threshold()[0] == 20_000)
"""


def test_what_is_loaded_is_spared_once_and_what_comes_later_is_not():
    # In a process of its own: what is frozen stays so.
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]


FREEING = """
import gc, sys, types, weakref
from bough.rollouts.runner import free_gpu_memory, spare_what_is_loaded
class Model: pass
model = Model()
model.itself, alive = model, weakref.ref(model)
spare_what_is_loaded()
del model
free_gpu_memory()
print(alive() is not None)
emptied = []
cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: emptied.append(alive() is None))
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
free_gpu_memory()
print(emptied == [True], gc.get_freeze_count() > 1000)
"""


def test_models_of_finished_work_are_freed_where_a_gpu_is_in_use_though_they_were_spared():
    done = subprocess.run([sys.executable, "-c", FREEING], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]

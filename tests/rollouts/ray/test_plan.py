import pytest

from bough.config.groups import ClusterConfig
from bough.rollouts.ray import Plan, make_plan

TWO_GPU_NODES = [{"CPU": 16.0, "GPU": 4.0}, {"CPU": 16.0, "GPU": 2.0}]
CPU_NODE = {"CPU": 8.0}


def plan(nodes, *, concurrency: int = 64, uses_gpu: bool = True, reserved_gpus: float = 0, **settings) -> Plan:
    config = ClusterConfig(address="auto", **settings)
    return make_plan(config, nodes, concurrency=concurrency, uses_gpu=uses_gpu, reserved_gpus=reserved_gpus)


def test_a_model_gets_one_worker_per_gpu_and_other_agents_one_per_cpu():
    found = plan([*TWO_GPU_NODES, CPU_NODE])
    assert (found.workers, found.gpus_per_worker, found.concurrency) == (6, 1, 11)
    found = plan([CPU_NODE, CPU_NODE])
    assert (found.workers, found.cpus_per_worker, found.gpus_per_worker, found.concurrency) == (16, 1, 0, 4)
    found = plan(TWO_GPU_NODES, uses_gpu=False)
    assert (found.workers, found.gpus_per_worker) == (32, 0)
    found = plan([CPU_NODE], concurrency=3)
    assert (found.workers, found.concurrency) == (3, 1), "no more workers than episodes"


def test_what_is_reserved_for_the_learners_is_left_to_them():
    assert plan(TWO_GPU_NODES, reserved_gpus=2).workers == 4
    assert plan([{"CPU": 8.0, "GPU": 1.0}], reserved_gpus=1).gpus_per_worker == 0
    found = make_plan(ClusterConfig(address="auto"), [{"CPU": 4.0}], concurrency=8, uses_gpu=False, reserved_cpus=3)
    assert (found.workers, found.room) == (1, 1)


@pytest.mark.parametrize(
    ("gpus_per_worker", "workers"),
    [(0.25, 24), (0.4, 12), (0.5, 12), (2, 3), (4, 1), (0, 32)],
)
def test_workers_share_a_gpu_or_have_several_of_one_node(gpus_per_worker: float, workers: int):
    assert plan(TWO_GPU_NODES, gpus_per_worker=gpus_per_worker).workers == workers


def test_workers_for_which_there_is_no_room_start_later():
    found = plan([CPU_NODE], workers=12)
    assert (found.workers, found.room, found.concurrency) == (12, 8, 6)
    assert str(found).endswith("; there is room for 8 now, the others start when the cluster grows")
    found = plan([{"GPU": 1.0}], gpus_per_worker=2)
    assert (found.workers, found.room) == (1, 0)
    assert [plan(TWO_GPU_NODES).room_on(node) for node in (TWO_GPU_NODES[0], CPU_NODE, {})] == [4, 0, 0]


def test_the_plan_is_said_in_one_line():
    assert str(plan([CPU_NODE], concurrency=1)) == (
        "cluster of 1 node, 8 CPUs and 0 GPUs: 1 worker with 1 CPU, up to 1 episode at the same time in it"
    )
    assert "6 workers with 1 CPU and 1 GPU each, up to 11 episodes at the same time in each" in str(plan(TWO_GPU_NODES))

"""The simulator of online RL on a cluster keeps its books, and equals the closed form where there is one."""

import json
import math
from dataclasses import dataclass, replace
from random import Random

import pytest
from benchmarks import scale_report
from benchmarks.scale import row as row_of
from benchmarks.scale_admission import Admission, Group
from benchmarks.scale_engine import Actor
from benchmarks.scale_model import Cluster, Driver, Engine, Episodes, Failures, Learners, Network, split
from benchmarks.scale_outcome import Outcome
from benchmarks.scale_scenarios import FILE, GPUS, RESULTS, SIZES, cluster_of, constants, scenarios
from benchmarks.scale_simulator import simulate
from benchmarks.scale_validation import compare_workers, workers_table

from bough.online.schedule import Pace
from tests.blocks import ROOT

SMALL = Cluster(
    engine=Engine(step_s=0.01, slot_s=0.001, slots=8),
    episodes=Episodes(100, tail=1.0, turns=5, read_per_turn=10, prompt_tokens=50),
    network=Network(bandwidth=1e9, learner_bandwidth=1e10, latency_s=1e-4),
    driver=Driver(writer_s=1e-3, call_s=1e-3),
    learner=Learners(tokens_per_s=5000),
    rollout_gpus=4,
    learner_gpus=2,
    batch_size=6,
    group_size=4,
    max_staleness=2,
    weights=1e8,
    gpus_per_node=2,
    teach_share=0.7,
    load_bandwidth=1e10,
)
FAILING = Failures(node_mtbf_s=20.0, restart_s=3.0, slow_share=0.3, slowdown=3.0)
CLUSTERS = {
    "small": SMALL,
    "failing": replace(SMALL, failures=FAILING),
    "staleness 0": replace(SMALL, max_staleness=0, failures=FAILING),
    "staleness 1, between episodes": replace(SMALL, max_staleness=1, swap_mid_episode=False),
    "slow environments": replace(SMALL, episodes=replace(SMALL.episodes, wait_s=0.5, wait_tail=1.0), failures=FAILING),
    "slow network": replace(SMALL, network=replace(SMALL.network, bandwidth=2e7), failures=FAILING),
}


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    return {name: simulate(cluster, batches=20, seed=3) for name, cluster in CLUSTERS.items()}


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_admitted_group_is_used_dropped_or_in_flight_and_none_twice(name: str, outcomes: dict[str, Outcome]):
    outcome = outcomes[name]
    taken = [number for batch in outcome.batches for number in (*batch.groups, *batch.flat, *batch.stale)]
    assert len(set(taken)) == len(taken)
    assert outcome.admitted == len(taken) + outcome.open_groups + outcome.ended_groups
    assert set(taken) <= set(range(outcome.admitted))
    assert all(batch.groups for batch in outcome.batches)


@pytest.mark.parametrize("name", CLUSTERS)
def test_no_token_is_learnt_from_that_is_older_than_the_bound(name: str, outcomes: dict[str, Outcome]):
    ages = {age for batch in outcomes[name].batches for age in batch.ages}
    assert ages and min(ages) >= 0 and max(ages) <= CLUSTERS[name].max_staleness


def test_every_token_of_a_chosen_group_is_used_or_counted_as_stale():
    cluster = replace(SMALL, teach_share=1.0, episodes=Episodes(100), driver=Driver(0.0, 0.0))
    for batch in simulate(cluster, batches=20).batches:
        tokens = sum(batch.ages.values()) + batch.stale_tokens
        assert tokens == pytest.approx(100 * 4 * (len(batch.groups) + len(batch.stale)))


def test_what_a_failed_node_had_in_flight_is_played_again(outcomes: dict[str, Outcome]):
    assert outcomes["failing"].replayed > 0
    assert outcomes["small"].replayed == 0


def test_the_same_seed_gives_the_same_run(outcomes: dict[str, Outcome]):
    assert simulate(CLUSTERS["failing"], batches=20, seed=3) == outcomes["failing"]
    assert simulate(CLUSTERS["failing"], batches=20, seed=4) != outcomes["failing"]


def alone(**changes: object) -> Cluster:
    """One engine, equally long episodes, and nothing else that takes time."""
    cluster = replace(
        SMALL, rollout_gpus=1, learner_gpus=1, episodes=Episodes(100), weights=0.0,
        driver=Driver(0.0, 0.0, bytes_per_token=0.0),
        learner=Learners(math.inf), network=Network(1e9, 1e9, 0.0), teach_share=1.0, group_size=1, batch_size=8,
    )  # fmt: skip
    return replace(cluster, **changes)


def test_one_worker_without_failures_equals_the_closed_form():
    # A step for 8 episodes takes 0.01 + 8 × 0.001 s, an episode 100 of them.
    assert simulate(alone()).episodes_per_s == pytest.approx(8 / (100 * 0.018))
    assert simulate(alone(batch_size=4, max_staleness=0)).episodes_per_s == pytest.approx(4 / (100 * 0.014))


def test_without_staleness_sampling_writing_training_and_sending_take_turns():
    cluster = alone(
        max_staleness=0, driver=Driver(0.02, 0.05), learner=Learners(400.0), weights=1e8, load_bandwidth=1e9,
    )  # fmt: skip
    # Sampling; a call and eight records; 800 tokens and their shipping; 0.1 s on the wire; 0.1 s to load.
    seconds = 1.8 + (0.05 + 8 * 0.02) + (800 / 400 + 800 * 16 / 1e9) + 0.1 + 0.1
    outcome = simulate(cluster)
    assert outcome.seconds / 8 == pytest.approx(seconds)
    assert outcome.rollout_idle == pytest.approx(1 - 1.8 / seconds)
    assert outcome.learner_idle == pytest.approx(1 - (2 + 800 * 16 / 1e9) / seconds)
    assert outcome.everywhere_s == pytest.approx(0.2)


def test_one_writer_limits_the_cluster():
    outcome = simulate(replace(SMALL, driver=Driver(writer_s=0.5, call_s=0.0)))
    assert outcome.episodes_per_s == pytest.approx(2.0, rel=0.05)
    assert outcome.driver_busy == pytest.approx(1.0, abs=0.02)
    assert simulate(replace(SMALL, driver=Driver(writer_s=0.5, call_s=0.0, writers=4))).episodes_per_s > 6


@pytest.mark.parametrize("fan_out", [0, 1, 2, 4])
def test_more_bandwidth_never_makes_it_slower(fan_out: int):
    cluster = replace(SMALL, episodes=replace(SMALL.episodes, tail=0.0), teach_share=1.0, max_staleness=0)
    rates, everywhere = [], []
    for bandwidth in (1e7, 3e7, 1e8, 1e9, 1e10):
        network = replace(cluster.network, bandwidth=bandwidth, fan_out=fan_out)
        outcome = simulate(replace(cluster, network=network), batches=6)
        rates.append(outcome.episodes_per_s)
        everywhere.append(outcome.everywhere_s)
    assert rates == sorted(rates) and rates[0] < rates[-1]
    assert everywhere == sorted(everywhere, reverse=True)


def test_failures_and_slow_engines_only_lower_throughput():
    for seed in range(2):
        rate = simulate(SMALL, batches=20, seed=seed).episodes_per_s
        for failures in (FAILING, replace(FAILING, slow_share=0.0), replace(FAILING, node_mtbf_s=0.0, slow_share=0.5)):
            assert simulate(replace(SMALL, failures=failures), batches=20, seed=seed).episodes_per_s < rate


def test_a_tree_reaches_nodes_level_by_level_and_a_star_all_at_the_end():
    network = Network(bandwidth=100.0, learner_bandwidth=1.0, latency_s=1.0, chunk=10.0, fan_out=2)
    # 2 × 1000 bytes on a link of 100 bytes/s; each level adds a chunk for both and the latency.
    arrivals = [network.arrival_s(1000, node, 7) for node in range(7)]
    assert arrivals == [21.0] * 2 + [22.2] * 4 + [23.4]
    assert replace(network, fan_out=0).arrival_s(1000, 0, 7) == 71.0
    assert network.arrival_s(1000, 0, 1) == 11.0


def test_an_all_reduce_sends_everything_twice():
    network = Network(bandwidth=1.0, learner_bandwidth=100.0, latency_s=0.5)
    assert network.all_reduce_s(1000, 1) == 0.0
    assert network.all_reduce_s(1000, 4) == 2 * 1000 * 0.75 / 100 + 2 * 2 * 0.5


def test_trees_are_dealt_out_by_tokens():
    assert Learners(10.0, update_s=1.0).compute_s([50, 30, 20, 20, 10], 2) == 1.0 + 70 / 10
    assert Learners(10.0).compute_s([50], 4) == 5.0


def test_a_shrunk_cluster_predicts_the_same():
    cluster = replace(cluster_of(constants(), 16), failures=Failures())
    whole, small = simulate(cluster, batches=5), simulate(cluster, batches=20, in_flight=128)
    assert (whole.shrink, small.shrink) == (1, 4)
    assert small.episodes_per_s == pytest.approx(whole.episodes_per_s, rel=0.1)
    assert small.staleness == pytest.approx(whole.staleness, rel=0.1)


def test_one_driver_of_a_shrunk_cluster_is_as_busy():
    cluster = replace(cluster_of(constants(), 16), driver=Driver(writer_s=0.02, call_s=0.0))
    assert simulate(cluster, batches=4, in_flight=128).episodes_per_s == pytest.approx(50.0, rel=0.02)


def test_one_version_is_sent_at_a_time_and_the_newest_follows():
    cluster = alone(weights=1e9, network=Network(1e9 / 9, 1e9, 0.0))
    outcome = simulate(cluster, batches=30, warm_up=1)
    versions = {number - age for number, batch in enumerate(outcome.batches) for age in batch.ages}
    # A broadcast takes 9 s, a batch 1.8 s if there are weights.
    assert 9 * (len(versions) - 1) <= outcome.batches[-1].at_s
    assert len(versions) < len(outcome.batches) / 1.5


def test_an_engine_never_goes_back_to_older_weights(monkeypatch: pytest.MonkeyPatch):
    swap = Actor.swap
    swapped = []

    def checked(actor: Actor, now: float, version: int) -> None:
        swapped.append(actor.version < version)
        swap(actor, now, version)

    monkeypatch.setattr(Actor, "swap", checked)
    # A node that comes back fetches the newest weights while older ones may be on their way to it.
    simulate(replace(CLUSTERS["slow network"], failures=Failures(node_mtbf_s=8.0, restart_s=0.5)), batches=15)
    assert len(swapped) > 20 and all(swapped)


def test_episodes_that_wait_for_the_newest_weights_are_younger_and_fewer():
    slow = replace(SMALL, network=replace(SMALL.network, bandwidth=5e7))
    any_weights, newest = simulate(slow), simulate(replace(slow, wait_for_newest=True))
    assert newest.episodes_per_s < any_weights.episodes_per_s
    assert newest.staleness < any_weights.staleness


@dataclass(frozen=True)
class Ended:
    """A group as `Pace` sees it."""

    number: int
    teaches: bool
    age: int
    num_finished: int = 4
    num_lost: int = 0


@pytest.mark.parametrize("max_staleness", [0, 1, 2])
@pytest.mark.parametrize("teach_share", [0.0, 0.3, 0.8])
def test_admission_starts_and_takes_what_pace_does(max_staleness: int, teach_share: float):
    rng = Random(max_staleness)
    ours, pace = Admission(5, 10, max_staleness), Pace[Ended](5, 10, max_staleness)
    groups: dict[int, Group] = {}
    running: list[int] = []

    def start(version: int) -> None:
        numbers, room = list(pace.starts()), ours.room()
        assert room == len(numbers)
        ours.start(room)
        for number in numbers:
            groups[number] = Group(number, 0, rng.random() < teach_share, {version: 1.0})
        running.extend(numbers)

    def ended(number: int, batch: int) -> Ended:
        age = batch - min(groups[number].tokens)
        return Ended(number, groups[number].teaches and age <= max_staleness, age)

    for batch in range(30):
        pace.ended = [ended(one.number, batch) for one in pace.ended]
        pace.begin(29 - batch)
        ours.begin(batch, 29 - batch)
        while True:
            start(batch)
            verdict = pace.verdict()
            assert ours.complete() == (verdict != "wait")
            if verdict != "wait":
                break
            for _ in range(min(len(running), rng.randrange(1, 8))):  # if none is running, another draw begins
                number = running.pop(rng.randrange(len(running)))
                pace.end(ended(number, batch))
                ours.end(groups[number])
        chosen, used = pace.take()
        taken = ours.take()
        assert sorted(group.number for group in taken.chosen) == [one.number for one in chosen]
        every = (*taken.chosen, *taken.flat, *taken.stale)
        assert sorted(group.number for group in every) == [one.number for one in used]
        start(batch)


def test_every_constant_is_measured_in_a_committed_file_or_assumed():
    found = constants()
    for name, constant in found.items():
        assert constant.source == "assumed" or (RESULTS / constant.source).is_file(), name
        assert constant.how and constant.unit and constant.value > 0, name
    text = {source: (RESULTS / source).read_text() for source in {one.source for one in found.values()} - {"assumed"}}
    assert str(found["engine_tokens_per_s"].value) in text["rollouts.md"]
    assert "14,909" in text["h200-grpo.md"] and found["learner_tokens_per_s"].value == round(14909 / 1.25)
    measured = json.loads(text["scale-workers.json"])
    writing = sorted(row["driver_cpu_s_per_episode"] for row in measured["rows"])
    assert found["writer_s"].value == pytest.approx(writing[len(writing) // 2], rel=0.01)
    assert found["call_s"].value == pytest.approx(measured["call_s"], rel=0.01)


@pytest.mark.parametrize("gpus", GPUS)
def test_both_sides_of_the_usual_cluster_have_gpus(gpus: int):
    cluster = cluster_of(constants(), gpus)
    assert cluster.gpus == gpus and min(cluster.rollout_gpus, cluster.learner_gpus) > 0


def test_gpus_are_split_so_that_both_sides_are_equally_fast():
    # 800 sampled tokens/s and as many trained per GPU that samples, 200 per GPU that learns.
    engine, learner = Engine(0.0, 1 / 800, 4), Learners(200.0)
    assert split(80, engine, learner, Episodes(10), 1, 1.0) == 64
    assert split(80, engine, learner, Episodes(10), 1, 0.25) == 40
    assert split(2, engine, learner, Episodes(10), 1, 1.0) == 1


def test_workers_are_predicted_from_the_fewest():
    rows = [{"workers": 1, "episodes_per_s": 2.0}, {"workers": 2, "episodes_per_s": 3.0}]
    found = compare_workers({"cores": 2, "rows": rows[::-1]})
    assert [row["predicted_episodes_per_s"] for row in found] == pytest.approx([2.0, 4.0], rel=0.01)
    assert found[1]["error_episodes_per_s"] == pytest.approx(4 / 3 - 1, abs=0.01)
    assert "| wall time | 2 | 3 | 4 | +33% |" in workers_table(found)
    one_core = compare_workers({"cores": 1, "rows": rows})
    assert one_core[1]["predicted_episodes_per_s"] == pytest.approx(2.0, rel=0.01)


def test_committed_predictions_are_of_the_committed_constants():
    found = scale_report.load()
    assert {name: one["value"] for name, one in found["constants"].items()} == {
        name: one.value for name, one in constants(FILE).items()
    }
    sizes = {(row["GPUs"], row["weights"]) for row in found["rows"] if row["table"] == "workers write"}
    assert sizes == {(gpus, size) for gpus in GPUS for size in SIZES}


def test_committed_predictions_are_those_of_the_simulator():
    (scenario,) = (one for one in scenarios(constants()) if one.table == "one writer" and one.shown == {"GPUs": 8})
    (row,) = (row for row in scale_report.load()["rows"] if row["table"] == "one writer" and row["GPUs"] == 8)
    # Logarithms may differ in the last bit from one machine to the next.
    assert row_of(scenario) == {name: _about(value) for name, value in row.items()}


def _about(value: object) -> object:
    return pytest.approx(value, rel=0.05, abs=0.01) if isinstance(value, float) else value


def test_the_page_has_the_committed_tables():
    page = (ROOT / "docs" / "notes" / "scale-2026-11.md").read_text()
    found = scale_report.load()
    missing = [title for title, table in scale_report.tables(found).items() if table not in page]
    assert missing == []
    assert workers_table(found["workers"]["rows"]) in page


@pytest.mark.parametrize(
    ("file", "words"),
    [
        ("training/step.py", "out of GPU memory in "),
        ("training/step.py", " tokens does not fit one GPU"),
        ("training/step.py", " even with gradient checkpointing"),
        ("training/step.py", "--qlora or --shard over more GPUs"),
        ("trees/pack.py", "longer than the token budget of"),
    ],
)
def test_troubleshooting_quotes_the_message_about_a_call_that_is_too_long(file: str, words: str):
    assert words in (ROOT / "docs" / "troubleshooting.md").read_text()
    assert words in (ROOT / "src" / "bough" / file).read_text()

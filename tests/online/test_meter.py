import asyncio

import pytest

from bough.config.groups import SamplingConfig
from bough.engines.base import EngineError, Generated
from bough.online.samplers import Meter, MeteredEngine


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_every_second_is_sampling_training_or_idle(clock: Clock):
    meter = Meter(clock)
    clock.now += 1  # idle
    meter.episodes(2)
    meter.request()
    clock.now += 2
    meter.request()
    clock.now += 1
    meter.answer(10)
    clock.now += 1
    meter.answer(6)
    clock.now += 2  # idle
    meter.request()
    meter.training(True)
    clock.now += 3  # a request that waits is not sampled
    values = meter.lap()
    assert values == {
        "batch_seconds": 10.0,
        "sampled_tokens_per_s": 1.6,
        "sampling_share": 0.4,
        "training_share": 0.3,
        "overlap_share": 0.0,
        "idle_share": pytest.approx(0.3),
        "episodes_in_flight": 1.8,
    }


def test_sampling_while_the_policy_trains_counts_as_both(clock: Clock):
    meter = Meter(clock, overlaps=True)
    meter.request()
    clock.now += 2  # sampling
    meter.training(True)
    clock.now += 3  # both
    meter.answer(6)
    clock.now += 1  # training
    meter.training(False)
    clock.now += 4  # idle
    values = meter.lap()
    shares = [values[f"{what}_share"] for what in ("sampling", "training", "overlap", "idle")]
    assert shares == [0.5, 0.4, 0.3, pytest.approx(0.4)]


class Engine:
    """Answers three tokens, or fails."""

    policy = "step-3"

    def __init__(self, clock: Clock) -> None:
        self.clock, self.released = clock, list[str]()

    async def generate(
        self, episode: str, prompt_ids: list[int], *, sampling: SamplingConfig, seed: int, stop_ids: list[int]
    ) -> Generated:
        self.clock.now += 2
        if episode == "bad":
            raise EngineError("no")
        return Generated([1, 2, 3], [0.0] * 3, "stop")

    def release(self, episode: str) -> None:
        self.released.append(episode)

    async def close(self) -> None:
        return


def test_tokens_and_time_of_an_engine_are_seen_also_where_it_fails(clock: Clock):
    meter, engine = Meter(clock), Engine(clock)
    metered = MeteredEngine(engine, meter)
    for episode in ("good", "bad"):
        asked = metered.generate(episode, [1], sampling=SamplingConfig(), seed=1, stop_ids=[])
        if episode == "bad":
            with pytest.raises(EngineError):
                asyncio.run(asked)
        else:
            assert asyncio.run(asked).completion_ids == [1, 2, 3]
    clock.now += 4
    values = meter.lap()
    assert (values["sampled_tokens_per_s"], values["sampling_share"]) == (3 / 8, 0.5)
    metered.release("good")
    assert metered.policy == "step-3" and engine.released == ["good"]

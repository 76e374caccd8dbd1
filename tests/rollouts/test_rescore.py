import asyncio

import pytest
import torch

from bough.config.groups import AgentConfig, SamplingConfig
from bough.policy.policy import Policy
from bough.rollouts.episode import Agent, ExpertAgent, make_agent
from bough.rollouts.rescore import Rescored, rescore, sampled_calls
from bough.types import Call, Message, Task, Trajectory, Turn

REPLY = Message(role="assistant", content="x")


def played(*calls: Call | None) -> Trajectory:
    turns = [Turn(reply=REPLY, call=call) for call in calls]
    return Trajectory(id="t", task=Task(id="t"), start=[Message(role="user", content="Go.")], turns=turns)


def call(number: int, logprobs: list[float] | None) -> Call:
    return Call(prompt_ids=[number, 2, 3], completion_ids=[4, 5], logprobs=logprobs)


def test_calls_are_spread_over_the_episodes_and_have_logprobs():
    episodes = [
        played(call(1, [-1, -1]), None),
        played(call(2, None)),
        *(played(call(n, [-1, -1])) for n in range(3, 9)),
    ]
    assert [chosen.prompt_ids[0] for chosen in sampled_calls(episodes, 3)] == [1, 4, 6]
    assert sampled_calls(episodes, 0) == [] == sampled_calls([], 3)


def logprobs(policy: Policy) -> list[float]:
    with torch.no_grad():
        [found] = policy.logprobs([call(1, None)])
    return [float(value) for value in found]


async def made(model: str, temperature: float = 1.0) -> Agent:
    agent = await make_agent(AgentConfig(model=model), SamplingConfig(temperature=temperature))
    await agent.close()
    return agent


def test_the_gap_is_what_was_added():
    first, second = logprobs(Policy.load("tiny").eval())
    found = rescore(asyncio.run(made("tiny")), [played(None, call(1, [first + 0.5, second - 0.25]))], 4)
    assert found.numbers["rescored_tokens"] == 2
    assert found.numbers["logprob_gap_max"] == pytest.approx(0.5, abs=1e-5)
    assert found.numbers["logprob_gap_mean"] == pytest.approx(0.375, abs=1e-5)
    assert found.logprobs == {"t": {1: pytest.approx([first, second], abs=1e-5)}}


def test_only_a_model_in_this_process_can_be_asked_again():
    assert rescore(ExpertAgent(), [played(call(1, [-1, -1]))], 4) == Rescored()
    assert [asyncio.run(made(name)).name for name in ("expert", "random")] == ["expert", "random"]


def test_calls_are_asked_again_at_the_temperature_they_were_sampled_at():
    policy = Policy.load("tiny").eval()
    policy.temperature = 0.7
    sampled = played(call(1, logprobs(policy)))
    gaps = [rescore(asyncio.run(made("tiny", at)), [sampled], 4).numbers["logprob_gap_max"] for at in (0.7, 1.0)]
    assert gaps[0] < 1e-5 and gaps[1] > 0.1

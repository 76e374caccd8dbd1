import asyncio

import pytest
import torch

from bough.config.groups import AgentConfig, SamplingConfig
from bough.policy.policy import Policy
from bough.rollouts.agents import Agent, ExpertAgent, make_agent
from bough.rollouts.rescore import Rescored, logprob_gap, rescore, sampled_calls, trained_logprobs
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


def test_the_gap_is_what_was_added():
    policy = Policy.load("tiny").eval()
    with torch.no_grad():
        [true] = policy.logprobs([call(1, None)])
    shifted = call(1, [float(true[0]) + 0.5, float(true[1]) - 0.25])
    gap = logprob_gap([shifted], trained_logprobs(policy, [shifted]))
    assert gap["rescored_tokens"] == 2
    assert gap["logprob_gap_max"] == pytest.approx(0.5, abs=1e-5)
    assert gap["logprob_gap_mean"] == pytest.approx(0.375, abs=1e-5)


def test_only_a_model_in_this_process_can_be_asked_again():
    assert rescore(ExpertAgent(), [played(call(1, [-1, -1]))], 4) == Rescored()


def test_calls_are_asked_again_at_the_temperature_they_were_sampled_at():
    policy = Policy.load("tiny").eval()
    policy.temperature = 0.7
    sampled = call(1, trained_logprobs(policy, [call(1, None)])[0])

    async def gap(temperature: float) -> float:
        agent = await make_agent(AgentConfig(model="tiny"), SamplingConfig(temperature=temperature))
        await agent.close()
        return float(rescore(agent, [played(sampled)], 4).numbers["logprob_gap_max"])

    assert asyncio.run(gap(0.7)) < 1e-5 and asyncio.run(gap(1.0)) > 0.1


def test_the_agent_that_settings_name():
    def made(model: str) -> Agent:
        async def make() -> Agent:
            agent = await make_agent(AgentConfig(model=model), SamplingConfig())
            await agent.close()
            return agent

        return asyncio.run(make())

    assert [made(name).name for name in ("expert", "random", "tiny")] == ["expert", "random", "tiny"]
    found = rescore(made("tiny"), [played(None, call(1, [-1, -1]))], 4)
    assert found.numbers["rescored_tokens"] == 2
    trained = trained_logprobs(Policy.load("tiny").eval(), [call(1, None)])[0]
    assert found.logprobs == {"t": {1: pytest.approx(trained, abs=1e-5)}}

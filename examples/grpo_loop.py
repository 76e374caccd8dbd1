"""GRPO from top to bottom: play groups of attempts, see which were better, take a step, play again.

    python examples/grpo_loop.py            # the tiny model, a minute on a laptop
    python examples/grpo_loop.py smollm2

`bough.grpo` does the same and more: several updates per batch, checkpoints, held-out tasks.
"""

import sys
from collections.abc import Iterator

import torch

import bough

STEPS = 10
TASKS = 4  # tasks per step
ATTEMPTS = 8  # attempts at each task: a group
LEARNING_RATE = 1e-2


class WriteE(bough.Environment):
    """One turn; the reward is the share of the reply that is the letter e."""

    max_turns = 1

    @classmethod
    def tasks(cls, options: object, *, split: str = "train", seed: int = 0) -> Iterator[bough.Task]:
        for number in range(100):
            yield bough.Task(id=f"{split}-{seed}-{number}", data={"number": number})

    async def start(self) -> bough.Observation:
        return bough.Observation.say(f"Exercise {self.task.data['number']}: write e as often as you can.")

    async def step(self, reply: str) -> bough.Observation:
        share = reply.count("e") / max(1, len(reply))
        return bough.Observation.end(success=share > 0.5, reward=share)


def main(name: str = "tiny") -> list[float]:
    """Trains a new adapter; returns the mean reward of each step's episodes."""
    model = bough.load(name, lora=bough.Lora(r=16, alpha=32))
    policy = model.policy
    weights = [weight for weight in policy.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=LEARNING_RATE)
    mean_rewards = []
    for step in range(STEPS):
        # 1. Play: the engine samples from the policy's weights as they are now, and keeps every
        #    call as exact tokens with the log-probability of each.
        played = bough.collect(
            model, WriteE, tasks=TASKS, attempts=ATTEMPTS, seed=step, max_new_tokens=4, top_k=12, rescore=0
        )
        rewards = [trajectory.rewards["outcome"] or 0.0 for trajectory in played]
        mean_rewards.append(sum(rewards) / len(rewards))

        # 2. Advantages: how much better than its group an attempt was, for each of its calls.
        calls: list[bough.Call] = []
        advantages: list[float] = []
        for group in bough.groups(played, flat=True):
            scores = [attempt.rewards["outcome"] for attempt in group.attempts]
            for attempt, advantage in zip(group.attempts, bough.group_advantages(scores).values, strict=True):
                of_attempt = [turn.call for turn in attempt.turns if turn.call]
                calls += of_attempt
                advantages += [advantage or 0.0] * len(of_attempt)

        # 3. Loss and gradient. A row is a token tree: prompts that calls share are computed once.
        num_tokens = sum(len(call.completion_ids) for call in calls)
        for row in policy.rows(calls):
            found = policy(row).logprobs  # a tensor for each call of the row
            logprobs = torch.cat(found)
            of_row = [torch.full_like(one, advantages[call]) for one, call in zip(found, row.calls, strict=True)]
            loss = bough.grpo_loss(
                logprobs,
                logprobs.detach(),  # one update per batch: the policy that played is the policy that learns
                torch.cat(of_row),
                torch.ones_like(logprobs),  # every token weighs the same
                denominator=num_tokens,  # of the whole step, not of the row
            )
            loss.value.backward()

        # 4. Step.
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step + 1:2}  reward {mean_rewards[-1]:.3f}  gradient norm {norm:.3f}")
    return mean_rewards


if __name__ == "__main__":
    main(*sys.argv[1:])

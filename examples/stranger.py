"""From an environment of your own to a trained and evaluated agent, on a CPU with the tiny model.

python examples/stranger.py
"""

import random
from collections.abc import Iterator

import bough

ITEMS = ["tea", "bread", "cheese"]


class Shop(bough.ToolEnvironment):
    """Sell the customer what was asked for."""

    max_turns = 2

    @classmethod
    def tasks(cls, options: object, *, split: str = "train", seed: int = 0) -> Iterator[bough.Task]:
        rng = random.Random(f"{split} {seed}")
        for number in range(500):
            yield bough.Task(id=f"{split}-{seed}-{number}", data={"item": rng.choice(ITEMS), "customer": number})

    def start(self) -> bough.Observation:
        return bough.Observation.say(f"Customer {self.task.data['customer']} asks for {self.task.data['item']}.")

    @bough.tool
    def sell(self, item: str) -> str:
        """Hand over one item."""
        right = item == self.task.data["item"]
        self.end(success=right, reward=float(right))
        return "Thank you!" if right else "That is not what I wanted."

    def expert(self) -> str:
        return self.call("sell", item=self.task.data["item"])


def brevity(trajectory: bough.Trajectory) -> float:
    """1 for a sale in the first reply, less for each further one."""
    return 1 / len(trajectory.turns)


def main(model: str = "tiny") -> bough.Evaluation:
    assert not bough.check(Shop).problems
    played = bough.collect("expert", Shop, tasks=64, rewards={"outcome": 1.0, brevity: 0.1})
    agent = bough.sft(
        model, bough.demos(played, min_reward=1.1), use_lora=False, learning_rate=1e-2, max_steps=40, batch_size=8
    )
    print(agent)
    result = bough.evaluate([model, agent], Shop, tasks=24, max_new_tokens=40)
    assert isinstance(result, bough.Evaluation)
    return result


if __name__ == "__main__":
    print(main())

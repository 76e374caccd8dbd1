"""A taskset with a tool server: the agent has to read a number with a tool."""

from __future__ import annotations

from collections.abc import Iterator

import verifiers.v1 as vf


class DiceTools(vf.Toolset[vf.ToolsetConfig]):
    TOOL_PREFIX = "dice"

    @vf.tool
    def read(self, which: str) -> str:
        """The number on a die."""
        return {"red": "5", "blue": "2"}[which]


class DiceTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class DiceTask(vf.Task[vf.TaskData, vf.State, DiceTaskConfig]):
    @classmethod
    def toolsets(cls, config: DiceTaskConfig) -> list[vf.Toolset]:
        return [DiceTools(config.tools)]

    @vf.reward(weight=1.0)
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == "5")


class DiceConfig(vf.TasksetConfig):
    task: DiceTaskConfig = DiceTaskConfig()


class Dice(vf.Taskset[DiceTask, DiceConfig]):
    """One question about a die."""

    def load(self) -> Iterator[DiceTask]:
        yield DiceTask(vf.TaskData(name="red", prompt="Which number is on the red die?"), self.config.task)


__all__ = ["Dice"]

if __name__ == "__main__":
    DiceTools.run()

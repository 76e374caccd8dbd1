"""An experiment with a GGUF model from start to end: play, SFT, DPO, merge, GGUF again, the same greedy text.

    python benchmarks/coder.py qwen2.5-coder-0.5b-instruct-q4_k_m.gguf       # one large GPU, about four minutes
    python benchmarks/coder.py tiny --tasks 4 --demonstrations 8 --steps 2   # a CPU, one or two minutes

The model plays held-out tasks of the household and of the interpreter. One LoRA adapter
learns from the experts of both (SFT), plays again, and learns from pairs in its own play (DPO).
The adapter is merged into a model folder and into GGUF files, which are read back: their
greedy replies are compared with those of the folder. The report is written after every
stage, so that an experiment that is cut off leaves what it has found.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from measure import machine, release, table

import bough
from bough.config.groups import SamplingConfig
from bough.engines.chat import TemplateEngine
from bough.types import Message, Pair, Trajectory

PLAY: dict[str, dict[str, Any]] = {
    "household": {"max_turns": 25, "max_new_tokens": 64, "max_errors": 3},
    "interpreter": {"max_turns": 4, "max_new_tokens": 200, "max_errors": 2},
}
PAIRS: dict[str, dict[str, Any]] = {
    "household": {"kinds": ["parting", "failure_mode", "right_step"], "per_trajectory": 5},
    "interpreter": {"kinds": ["episode"]},
}
LORA = {"lora_r": 32, "lora_alpha": 64}
COMPARED = 12  # conversations of each environment that are continued greedily
REPLY = 48  # tokens of each such reply


class Report:
    """The Markdown file: a table of stages with their seconds, then one section for each finding."""

    def __init__(self, path: Path, title: str) -> None:
        self.path, self.title = path, title
        self.stages: list[list[str]] = []
        self.sections: list[str] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[list[str]]:
        """Times a stage; what is put into the list is what the report says of it."""
        found: list[str] = []
        begin = time.perf_counter()
        yield found
        self.stages.append([name, f"{time.perf_counter() - begin:.1f}", "; ".join(found)])
        print(*self.stages[-1], sep=" | ", flush=True)
        release()
        self.write()

    def section(self, heading: str, text: str) -> None:
        self.sections.append(f"## {heading}\n\n{text}\n")
        self.write()

    def write(self) -> None:
        total = sum(float(seconds) for _, seconds, _ in self.stages)
        stages = table(["stage", "seconds", "found"], [*self.stages, ["all", f"{total:.0f}", ""]])
        self.path.write_text("\n".join([f"# {self.title}\n\n{machine()}\n\n{stages}\n", *self.sections]))


class Experiment:
    """The stages. Folders of their output are in `folder`."""

    def __init__(self, options: argparse.Namespace, report: Report) -> None:
        self.options, self.report, self.folder = options, report, options.work
        sandbox = {"options": {"unsafe_no_sandbox": True}} if options.unsafe_no_sandbox else {}
        self.play = PLAY | {"interpreter": PLAY["interpreter"] | sandbox}

    def run(self) -> None:
        model = self.options.model
        self.evaluate("base", model)
        agent = self.sft(model)
        self.evaluate("sft", agent)
        better = self.dpo(agent)
        self.evaluate("dpo", better)
        self.compare_evaluations()
        self.export(better)

    def evaluate(self, name: str, model: Any) -> None:
        for environment, settings in self.play.items():
            with self.report.stage(f"{name} plays {environment}") as found:
                evaluation = bough.evaluate(
                    model, environment, tasks=self.options.tasks, concurrency=64, **settings,
                    output=self.folder / f"{environment}-{name}",
                )  # fmt: skip
                (numbers,) = evaluation.reports.values()
                found.append(rate(numbers["success"]) + f" of {numbers['episodes']} episodes")
                found.append(f"{numbers['turns']['mean']:.1f} turns")
                found += [f"{count} × {why}" for why, count in numbers["errors"].items()]
                found += [f"{numbers['lost']} lost"] if numbers["lost"] else []

    def sft(self, model: str) -> Any:
        shown: list[Trajectory] = []
        with self.report.stage("experts play") as found:
            for environment, settings in self.play.items():
                limits = {name: value for name, value in settings.items() if name != "max_new_tokens"}
                played = bough.collect(
                    "expert", environment, tasks=self.options.demonstrations, concurrency=64, **limits
                )
                kept = bough.demos(played)
                found.append(f"{environment}: {len(kept)} demonstrations of {len(played)} episodes")
                shown += kept
        with self.report.stage("SFT") as found:
            agent = bough.sft(
                model, shown, **LORA, learning_rate=3e-4, batch_size=8, num_epochs=1, max_steps=self.options.steps,
                output_dir=self.folder / "sft",
            )  # fmt: skip
            found.append(trained(agent, "loss"))
        return agent

    def dpo(self, agent: Any) -> Any:
        pairs: list[Pair] = []
        for environment, settings in self.play.items():
            with self.report.stage(f"sft plays {environment} to learn") as found:
                played = bough.collect(
                    agent, environment, tasks=max(2, self.options.tasks * 4 // 5), attempts=4, seed=1, concurrency=128,
                    **settings,
                )  # fmt: skip
                mined = bough.pairs(played, environment=environment, **PAIRS[environment])
                solved = sum(episode.success is True for episode in played)
                found.append(f"{solved} of {len(played)} episodes solved, {len(mined)} pairs")
                pairs += mined
        if not pairs:
            self.report.section("DPO", "No pairs: all attempts at a task ended alike. DPO was left out.")
            return agent
        with self.report.stage("DPO") as found:
            better = bough.dpo(
                agent, pairs, learning_rate=5e-5, batch_size=8, nll_alpha=1.0, max_steps=self.options.steps,
                output_dir=self.folder / "dpo",
            )  # fmt: skip
            found.append(trained(better, "loss", "accuracy"))
        return better

    def compare_evaluations(self) -> None:
        for environment in self.play:
            compared = bough.compare(*(self.folder / f"{environment}-{name}" for name in ("base", "sft", "dpo")))
            self.report.section(f"Success in {environment}", f"```text\n{compared}\n```")

    def export(self, agent: Any) -> None:
        folder = self.folder / "merged"
        with self.report.stage("merge"):
            bough.merge(agent, folder)
        conversations = [
            conversation
            for environment in self.play
            for conversation in openings(self.folder / f"{environment}-dpo", COMPARED)
        ]
        with self.report.stage("greedy replies of the merged folder") as found:
            expected = greedy(folder, conversations)
            found.append(f"{len(expected)} replies, {sum(map(len, expected)):,} characters")
        rows = []
        for kind in self.options.gguf_types:
            file = self.folder / f"merged-{kind}.gguf"
            with self.report.stage(f"GGUF {kind}: write, read back, reply") as found:
                bough.merge(agent, file, gguf_type=kind)
                same = sum(a == b for a, b in zip(expected, greedy(file, conversations), strict=True))
                found.append(f"{same} of {len(expected)} replies are the same")
            rows.append([kind, f"{file.stat().st_size / 1e6:,.0f} MB", f"{same} of {len(expected)}"])
        self.report.section(
            "The merged model as GGUF again",
            f"Greedy replies of up to {REPLY} tokens in float32, one at a time, to conversations from both "
            "environments, each made into tokens by the model's own tokenizer and template.\n\n"
            + table(["type", "size", "same text as the merged folder"], rows),
        )


def rate(measure: dict[str, Any]) -> str:
    """A success rate with its interval."""
    if measure["mean"] is None:
        return "success unknown"
    interval = measure["interval"]
    return f"success {measure['mean']:.1%} ({interval['low']:.1%} to {interval['high']:.1%})"


def trained(agent: Any, *names: str) -> str:
    """How training went, in a line."""
    found = [f"{agent.report['step']} steps"]
    for name in names:
        values = [line[name] for line in agent.metrics if name in line]
        found += [f"{name} {values[0]:.3g} → {values[-1]:.3g}"] if values else []
    return ", ".join(found)


Conversation = tuple[list[Message], list[dict[str, Any]]]


def openings(folder: Path, count: int) -> list[Conversation]:
    """Conversations of an evaluation's episodes, each up to another turn, with their tools."""
    (file,) = folder.rglob("trajectories.jsonl*")
    found = []
    for number, episode in enumerate(bough.read(file)):
        assert isinstance(episode, Trajectory)
        turns = episode.turns[: number % max(1, len(episode.turns))]
        history = [message for turn in turns for message in (turn.reply, *turn.observation)]
        found.append(([*episode.start, *history], list(episode.tools)))
    return found[:count]


def greedy(model: Path, conversations: list[Conversation]) -> list[str]:
    """What the model replies, one conversation after the other."""
    return asyncio.run(_replies(bough.load(model, dtype=torch.float32), conversations))


async def _replies(model: bough.LoadedModel, conversations: list[Conversation]) -> list[str]:
    engine = TemplateEngine(model.engine, model.template, SamplingConfig(temperature=0.0, max_new_tokens=REPLY))
    chats = [engine.open(f"{number}", seed=0) for number in range(len(conversations))]
    try:
        return [
            (await chat.answer(messages, tools)).message.content
            for chat, (messages, tools) in zip(chats, conversations, strict=True)
        ]
    finally:
        await engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a GGUF file, or any other model that can be written as GGUF")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results" / "coder.md")
    parser.add_argument("--work", type=Path, default=Path("runs/coder"), help="folder of the stages, deleted first")
    parser.add_argument("--tasks", type=int, default=50, help="held-out tasks of each environment")
    parser.add_argument("--demonstrations", type=int, default=250, help="tasks that each expert plays")
    parser.add_argument("--steps", type=int, default=60, help="maximum number of steps of SFT, and of DPO")
    parser.add_argument("--gguf-types", nargs="+", default=["f32", "f16"], help="data types of the GGUF files")
    parser.add_argument(
        "--unsafe-no-sandbox", action="store_true", help="run the model's code without isolation, where there is none"
    )
    options = parser.parse_args()
    shutil.rmtree(options.work, ignore_errors=True)
    options.work.mkdir(parents=True)
    report = Report(options.output, f"{Path(options.model).stem}: play, SFT, DPO, merge, GGUF")
    Experiment(options, report).run()
    print(f"\n{options.output}")


if __name__ == "__main__":
    main()

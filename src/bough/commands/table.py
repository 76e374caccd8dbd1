"""Every command: its description, its settings and its function. Both are imported only when it is used."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Verb:
    """One command. `config` and `run` are "module:name", resolved only when the verb is called."""

    about: str
    config: str
    run: str
    examples: str = ""


VERBS: dict[str, Verb] = {
    "data stats": Verb(
        "print statistics of a data file",
        "bough.config.data:StatsConfig", "bough.commands.data:stats_command",
        "  bough data stats sft.jsonl\n  bough data stats trajectories/",
    ),
    "data validate": Verb(
        "list the bad rows of a data file as file:line",
        "bough.config.data:ValidateConfig", "bough.commands.data:validate_command",
        "  bough data validate pairs.jsonl\n  bough data validate pairs.jsonl --format trl",
    ),
    "data convert": Verb(
        "convert a data file to another format",
        "bough.config.data:ConvertConfig", "bough.commands.data:convert_command",
        "  bough data convert sft.jsonl --to trl -o sft-trl.jsonl\n"
        "  bough data convert pairs.parquet --to bough -o pairs.jsonl.zst --on-error skip",
    ),
    "data show": Verb(
        "print records as readable transcripts",
        "bough.config.data:ShowConfig", "bough.commands.data:show_command",
        "  bough data show sft.jsonl --index 3 --count 2",
    ),
    "data formats": Verb(
        "list the formats that can be read and written",
        "bough.config.data:FormatsConfig", "bough.commands.data:formats_command",
    ),
    "doctor": Verb(
        "show which tokens of a data file would be trained, and what is wrong with it",
        "bough.config.data:DoctorConfig", "bough.commands.doctor:doctor_command",
        "  bough doctor sft.jsonl --model smollm2\n  bough doctor pairs.jsonl --model Qwen/Qwen3-4B --max-length 2048",
    ),
    "run": Verb(
        "run a recipe: from a model and an environment to a better agent",
        "bough.config.run:RunConfig", "bough.commands.run:run_command",
        "  bough run demo\n  bough run recipe.yaml --set model=tiny sft.max_steps=3\n  bough run demo --dry-run",
    ),
    "sweep": Verb(
        "run a recipe with several values of some settings and several seeds",
        "bough.config.run:SweepConfig", "bough.commands.sweep:sweep_command",
        "  bough sweep recipe.yaml --vary dpo.beta=0.01,0.1,0.5 --seeds 3\n"
        "  bough sweep recipe.yaml --vary demonstrations.tasks=5,20,100 pairs.kinds=[episode],[parting] --dry-run\n"
        "  bough sweep recipe.yaml --vary model=smollm2,tiny --set sft.max_steps=10 --jobs 2 -o runs/models",
    ),
    "runs list": Verb(
        "list runs and their progress",
        "bough.config.run:RunsListConfig", "bough.commands.run:list_runs",
        "  bough runs list",
    ),
    "runs show": Verb(
        "show one run: its stages, their inputs and outputs, its results",
        "bough.config.run:RunsShowConfig", "bough.commands.run:show_run",
        "  bough runs show runs/demo",
    ),
    "env list": Verb(
        "list the environments, or the options of one",
        "bough.config.play:EnvListConfig", "bough.commands.environments:list_all",
        "  bough env list\n  bough env list household",
    ),
    "env check": Verb(
        "check your own environment against the contract",
        "bough.config.play:EnvCheckConfig", "bough.commands.environments:check_one",
        "  bough env check examples/guess_number.py:GuessNumber\n  bough env check web --options pages=click-button",
    ),
    "env new": Verb(
        "write a new environment with its test and a recipe",
        "bough.config.play:EnvNewConfig", "bough.commands.environments:new",
        "  bough env new shop",
    ),
    "env setup": Verb(
        "install what an environment needs besides Python packages",
        "bough.config.play:EnvSetupConfig", "bough.commands.environments:setup",
        "  bough env setup web",
    ),
    "play": Verb(
        "play in an environment yourself, or replay actions",
        "bough.config.play:PlayConfig", "bough.commands.play:play_command",
        "  bough play household --seed 3\n"
        "  bough play household --game game.tw-pddl --actions actions.txt --json",
    ),
    "collect": Verb(
        "let a model play episodes and record them",
        "bough.config.groups:CollectConfig", "bough.commands.collect:collect_command",
        "  bough collect --model smollm2 --environment household --tasks 64 --attempts 8 --output runs/collect\n"
        "  bough collect --model expert --environment household --tasks 200 --output runs/demonstrations",
    ),
    "demos": Verb(
        "select the episodes worth imitating",
        "bough.config.curation:DemosConfig", "bough.commands.curate:demos_command",
        "  bough demos runs/collect -o demos.jsonl --per-task 1\n"
        "  bough demos runs/collect -o demos.jsonl --rewards outcome=1 steps=0.2 --min-reward 1.1",
    ),
    "corrections": Verb(
        "label the agent's own episodes with what an expert or a stronger model would have replied",
        "bough.config.curation:CorrectionsConfig", "bough.commands.curate:corrections_command",
        "  bough corrections runs/collect --by expert --mix demos.jsonl -o corrections.jsonl\n"
        "  bough corrections runs/collect --by Qwen/Qwen3-8B --where everywhere -o corrections.jsonl\n"
        "  bough corrections runs/collect --by http://127.0.0.1:8000/v1 -o corrections.jsonl",
    ),
    "pairs": Verb(
        "find preference pairs: a better and a worse continuation of the same state",
        "bough.config.curation:PairsConfig", "bough.commands.curate:pairs_command",
        "  bough pairs runs/collect -o pairs.jsonl\n"
        "  bough pairs runs/collect --also runs/demonstrations --kinds parting failure_mode -o pairs.jsonl\n"
        "  bough pairs runs/collect --kinds counterfactual --model runs/sft/final --max-episodes 500 -o pairs.jsonl",
    ),
    "groups": Verb(
        "group the attempts at each task",
        "bough.config.curation:GroupsConfig", "bough.commands.curate:groups_command",
        "  bough groups runs/collect -o groups.jsonl --rewards outcome=1 tool_call=1",
    ),
    "sft": Verb(
        "train on demonstrations",
        "bough.methods.sft:SFTConfig", "bough.commands.train:sft_command",
        "  bough sft --train-file sft.jsonl --model smollm2 --output-dir runs/sft\n"
        "  bough sft --config train.yaml --learning-rate 1e-5",
    ),
    "dpo": Verb(
        "train on preference pairs",
        "bough.methods.dpo:DPOConfig", "bough.commands.train:dpo_command",
        "  bough dpo --train-file pairs.jsonl --model runs/sft/final --beta 0.1 --output-dir runs/dpo",
    ),
    "grpo": Verb(
        "train on groups of attempts",
        "bough.methods.grpo:GRPOConfig", "bough.commands.train:grpo_command",
        "  bough grpo --train-file groups.jsonl --model runs/dpo/final --output-dir runs/grpo\n"
        "  bough grpo --agent my_agent.py:play --model smollm2 --max-steps 100 --output-dir runs/grpo",
    ),
    "distill": Verb(
        "let a student play and learn a teacher's distribution over its tokens",
        "bough.methods.distill:DistillConfig", "bough.commands.train:distill_command",
        "  bough distill --teacher Qwen/Qwen3-4B --model Qwen/Qwen3-0.6B --environment household --max-steps 200 "
        "--output-dir runs/distill\n"
        "  bough distill --teacher runs/sft/final --model smollm2 --beta 0.5 --train-file runs/own/trajectories.jsonl",
    ),
    "evolve": Verb(
        "train a population of adapters and breed it by fitness",
        "bough.experiments.evolve_settings:EvolveConfig", "bough.commands.evolve:evolve_command",
        "  bough evolve --train-file pairs.jsonl --model smollm2 --mutate learning_rate=1e-6..1e-4 beta=0.01..0.5\n"
        "  bough evolve agilerl-population --model smollm2 --train-file pairs.jsonl\n"
        "  bough evolve --method sft --train-file demos.jsonl --environment web --mutate learning_rate=1e-5..1e-3",
    ),
    "eval": Verb(
        "evaluate models in an environment, with intervals and paired tests, or on a held-out file",
        "bough.config.evaluation:EvalConfig", "bough.commands.evaluate:evaluate_command",
        "  bough eval --model smollm2 --model runs/dpo/final --environment household --output runs/eval\n"
        "  bough eval --model runs/sft/final --eval-file held-out.jsonl",
    ),
    "compare": Verb(
        "compare evaluations, with significance tests",
        "bough.config.evaluation:CompareConfig", "bough.commands.evaluate:compare_command",
        "  bough compare runs/eval-sft/results.json runs/eval-dpo/results.json\n"
        "  bough compare runs/eval-sft runs/eval-dpo --gate",
    ),
    "view": Verb(
        "view a run or a data file in the browser",
        "bough.config.play:ViewConfig", "bough.commands.view:view_command",
        "  bough view runs/demo\n  bough view pairs.jsonl --model smollm2\n  bough view runs/demo --export demo.html",
    ),
    "serve": Verb(
        "serve a model over an OpenAI-compatible address and record every call",
        "bough.config.play:ServeConfig", "bough.commands.serve:serve_command",
        "  bough serve --model runs/sft/final --record runs/recorded\n"
        "  bough serve --engine openai --base-url http://127.0.0.1:9000/v1 --record runs/recorded --port 8001",
    ),
    "merge": Verb(
        "merge an adapter into its base model",
        "bough.config.publish:MergeConfig", "bough.commands.publish:merge_command",
        "  bough merge runs/dpo/final -o model\n  bough merge runs/dpo/final -o model.gguf --gguf-type q8_0",
    ),
    "card": Verb(
        "write the model card of a trained model",
        "bough.config.publish:CardConfig", "bough.commands.publish:card_command",
        "  bough card runs/demo --license apache-2.0\n"
        "  bough card runs/dpo --repo org/name --evaluations runs/eval --overwrite",
    ),
    "push": Verb(
        "upload a trained model and its card to the Hub",
        "bough.config.publish:PushConfig", "bough.commands.publish:push_command",
        "  bough push runs/demo --repo org/name --dry-run\n  bough push runs/demo --repo org/name --private",
    ),
}  # fmt: skip


# Commands that resume in their output folder without being told to.
RESUMED = ("collect", "eval", "run", "sweep")
# Commands that resume with --resume.
RESUMED_IF_ASKED = ("sft", "dpo", "grpo", "distill", "evolve")


def resolve(target: str) -> Any:
    """The object that "module:name" names."""
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)

"""A training run from its settings to weights on disk, the same for every method.

    settings → run folder → template, examples → policy → loop → weights, report

`train` learns from data. `Run` is what it is made of, for runs that get their examples elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from bough import bit_exact
from bough.config.base import flattened, leaves, parts
from bough.config.groups import ClusterConfig
from bough.config.run_folder import RunDir
from bough.config.training import TrainingConfig
from bough.config.yaml_file import YamlFile
from bough.errors import InputError
from bough.event_loop import Interrupts, StoppedError
from bough.files import candidates, read_json, write_json
from bough.ledger import Ledger, plural
from bough.models.resolve import folder_digest, model_digest
from bough.policy.adapters import (
    add_actor,
    add_reference,
    freeze_surroundings,
    grow,
    load_actor,
    lora,
    start_adapter,
)
from bough.policy.head import coefficient
from bough.policy.load import base_and_adapter, load_call_builder, load_model, save_policy
from bough.policy.policy import Policy
from bough.policy.processes import Processes
from bough.policy.reference import ReferenceLogprobs
from bough.terminal.console import TrainingProgress
from bough.training.checkpoint import Checkpoint, Counters, checkpoints
from bough.training.loop import Trainer
from bough.training.method import Data, Example, Examples, Method
from bough.training.plan import CHOSEN, PlannedSource, Source, accelerated, choose_budget, not_recorded
from bough.training.trackers import Trackers

log = logging.getLogger(__name__)
# Settings that do not change what is computed.
UNIMPORTANT = {
    *("resume", "overwrite", "output_dir", "logging_steps", "save_steps", "save_total_limit", "report_to"),
    *leaves(ClusterConfig),
}
# Settings that say what shape the trained weights have; a checkpoint of them has fixed it.
SHAPE = {"use_lora", "lora_r", "lora_alpha", "lora_target_modules", "lora_experts"}

# Settings of earlier versions that changed what is computed, as they were where they did not.
OFF = {"fp16": False, "gradient_accumulation_steps": 1, "passes": 1, "entropy_coef": 0.0, "success": None}

# Held-out records are looked for among the trained ones up to this number of them: larger data are read from disk.
MOST_COMPARED = 20_000

C = TypeVar("C", bound=TrainingConfig)
# What a method does to its policy before it trains, and undoes afterwards, such as to give it a teacher.
# What it yields, if anything, takes the place of the policy's reference.
Around = Callable[[Policy, "Run[Any]"], AbstractContextManager[ReferenceLogprobs | None]]


@dataclass(frozen=True)
class Trained:
    """The result of a run: the weights' folder, the counters at the end, and how many rows were kept or dropped."""

    weights: Path
    counters: Counters
    ledgers: list[dict[str, Any]]

    def interrupted(self) -> StoppedError:
        """What a run ends with whose interrupt came too late to stop the training: nothing may follow it."""
        step = self.counters.step
        return StoppedError(f"Stopped after step {step}, the last one; the weights are in {self.weights}.")


def train(
    config: TrainingConfig,
    method: Method[Any],
    data: Data | None = None,
    held_out: Data | None = None,
    around: Around | None = None,
) -> Trained:
    """Trains a policy on data: `train_file` and `eval_file` of the settings, or the files or records given here."""
    data = config.data.train_file if data is None else data
    held_out = config.data.eval_file if held_out is None else held_out
    files = [Path(one).resolve() for one in (data, held_out) if isinstance(one, str | Path)]
    if len(files) == 2 and files[0] == files[1]:
        raise InputError(f"eval_file is the file that is trained on, {data}; give other records, or leave it out")
    with opened(config) as run:
        training = method.examples(data, run.builder)
        evaluation = method.examples(held_out, run.builder) if held_out is not None else Examples[Any]()
        if run.processes.first and evaluation.examples and len(training.examples) <= MOST_COMPARED:
            # A loss on records that are trained on says nothing of others, and early stopping goes by it.
            trained = set(map(_content, training.examples))
            if common := sum(_content(example) in trained for example in evaluation.examples):
                log.warning(
                    "%s: %d of %s are also trained on; their loss is not a held-out loss.",
                    evaluation.name,
                    common,
                    plural(len(evaluation.examples), "held-out record"),
                )
        # Where all weights are trained, the reference is computed first, and found again by the call objects.
        first = method.needs_reference and not config.lora.enabled
        examples = list(training.examples) if first else training.examples
        source = PlannedSource(examples, run.config)
        run.begin(training.digest, evaluation.digest, source)
        policy = run.load_policy(reference=method.needs_reference, temperature=method.temperature)
        ledgers, measured = [training.rows, training.calls], list(evaluation.examples)
        with (
            around(policy, run) if around else nullcontext() as reference,
            run.trainer(policy, method, source, held_out=measured, ledgers=ledgers, reference=reference) as trainer,
        ):
            if first:
                run.compute_reference(trainer, [*examples, *measured])
            counters = trainer.train(run.resumed, same_held_out=run.same_held_out)
        return run.finish(counters, [ledger.to_json() for ledger in ledgers])


def _content(example: Example) -> int:
    return hash(tuple((tuple(call.prompt_ids), tuple(call.completion_ids)) for call in example.own))


@contextmanager
def opened(config: C) -> Iterator[Run[C]]:
    """The run of these settings, with its folder locked: no other process trains there meanwhile."""
    folder, processes = RunDir(config.output_dir), Processes()
    with ExitStack() as held:

        def prepare() -> None:
            held.enter_context(folder.locked())
            folder.make_room(resume=config.resume, overwrite=config.overwrite)

        processes.first_does(prepare)
        yield Run(config, folder, processes)


class Run(Generic[C]):
    """A run in its folder, new or resumed. `config` has the shape of the adapter that the run starts from, if any."""

    def __init__(self, config: C, folder: RunDir, processes: Processes) -> None:
        self.folder, self.processes = folder, processes
        self.interrupts = Interrupts(quiet=not processes.first)
        found = checkpoints(folder.checkpoints) if config.resume else []
        self.resumed = found[-1] if found else None
        if self.resumed:
            self.resumed.check()
        elif config.resume:
            log.warning("%s has no checkpoint yet; starting from the beginning.", folder.path)
        if self.resumed and processes.device.type == "cpu":
            bit_exact.warn_if_runs_differ()
        self.start, self.config = start_adapter(config)
        self.left_open = {name for name in CHOSEN if getattr(config.machine, name) is None}
        if self.resumed:
            self._set_machine(**_chosen_before(folder, self.config, self.left_open, processes))
        if processes.first and config.resume and folder.config.exists():
            _report_changes(folder, self.config, self.resumed)
        self.builder = load_call_builder(
            self.config.model,
            config.calls.chat_template,
            max_length=config.calls.max_length,
            stride=config.calls.stride,
        )
        self.template = self.builder.template
        self.same_held_out = True

    def begin(
        self, examples: str | None = None, held_out: str | None = None, source: PlannedSource | None = None
    ) -> None:
        """Decides what the settings leave open, and writes them and the origin, checked against a resumed run's.

        `examples` and `held_out` are digests of the data; `source` is the training data in the order of its steps.
        """
        machine = accelerated(self.config, self.processes, source)
        self._set_machine(compile=machine.compile, cuda_graphs=machine.cuda_graphs)
        if machine.token_budget is None:
            self._set_machine(token_budget=choose_budget(self.config, self.processes))
        self.origin = Origin.of(self.config, self.start, examples, held_out)
        if self.resumed:
            self.same_held_out = self._check_origin(self.resumed)
        self.processes.wait()
        if self.processes.first:
            self.folder.create(self.config)
            self.origin.write(self.folder)

    def load_policy(self, *, reference: bool, temperature: float, whole: bool = False) -> Policy:
        """The policy as the run begins or resumes. `whole`: not sharded, whatever the settings say."""
        config = self.config
        if whole:
            config = config.model_copy(update={"machine": config.machine.model_copy(update={"shard": False})})
        return load_policy(
            config, self.start, self.resumed, self.processes, reference=reference, temperature=temperature
        )

    def _set_machine(self, **settings: Any) -> None:
        machine = self.config.machine.model_copy(update=settings)
        self.config = self.config.model_copy(update={"machine": machine})

    @contextmanager
    def trainer(
        self,
        policy: Policy,
        method: Method[Any],
        source: Source,
        *,
        held_out: Sequence[Example] = (),
        ledgers: Sequence[Ledger] = (),
        reference: ReferenceLogprobs | None = None,
    ) -> Iterator[Trainer]:
        """The training loop, with progress and trackers open around it. `ledgers` are shown before the first step."""
        chosen = self.config.machine.cuda_graphs and "cuda_graphs" in self.left_open
        # The run chose recordings itself, and this model cannot be recorded after all.
        if chosen and (reasons := policy.row_reader.not_recordable()):
            log.warning("cuda_graphs: off (this model cannot be recorded: %s).", ", ".join(reasons))
            self._set_machine(cuda_graphs=False)
            if self.processes.first:
                self.folder.create(self.config)
        first, config = self.processes.first, self.config
        names = config.tracking.report_to if first else []
        settings = self.folder.recorded(config.flat_dump())
        with (
            Trackers(names, self.folder.path, config.tracking.wandb_project, settings) as trackers,
            TrainingProgress() as progress,
        ):

            def report(values: dict[str, Any]) -> None:
                if first:
                    progress.tell(values)
                    trackers.log(values)

            trainer = Trainer(
                policy, method, source, config, self.folder, partial(save_policy, policy, self.template.tokenizer),
                held_out=held_out, processes=self.processes, report=report, interrupts=self.interrupts,
                reference=reference,
            )  # fmt: skip
            if first:
                progress.begin(len(source), *ledgers)
            yield trainer

    def compute_reference(self, trainer: Trainer, examples: Sequence[Example]) -> None:
        """The reference's log-probabilities, before the first step changes the weights."""
        assert trainer.reference is not None
        calls = [call for example in examples for call in example.calls]
        name = f"{self.origin.model}|{precision(self.config, self.processes.device)}"
        reload = partial(self._initial_policy, trainer.method.temperature) if self.resumed else None
        budget = self.config.machine.tokens_per_pass
        trainer.reference.compute(calls, budget, self.folder.cache, name, start=reload)

    def finish(self, counters: Counters, ledgers: list[dict[str, Any]]) -> Trained:
        """Writes the ledgers and the report. An interrupt that came too late to stop the training is raised then."""
        if self.processes.first:
            write_json(self.folder.ledger, ledgers)
            write_json(self.folder.report, asdict(counters) | {"weights": self.folder.final.name})
        trained = Trained(self.folder.final, counters, ledgers)
        if self.interrupts.requested:
            raise trained.interrupted()
        return trained

    def _initial_policy(self, temperature: float) -> Policy:
        """The model that a run of all weights began with, loaded in addition to the trained one."""
        log.warning(
            "The run folder has no reference for these settings and this data; computing it from %s again.",
            self.config.model,
        )
        return load_policy(self.config, None, None, self.processes, reference=False, temperature=temperature)

    def _check_origin(self, resumed: Checkpoint) -> bool:
        """InputError unless weights and data are those the run began with; returns whether the held-out data is too."""
        before = Origin.read(self.folder)
        if differences := self.origin.differences(before, self.config, self.start):
            raise InputError(
                f"{self.folder.path} cannot resume. To train its weights on something else, start a new run: "
                f"--model {resumed.weights} and another --output-dir. What has changed:", differences,
            )  # fmt: skip
        if before.held_out and self.origin.held_out and before.held_out != self.origin.held_out:
            log.warning("The held-out examples have changed; the best eval loss so far is reset.")
        return before.held_out == self.origin.held_out


def _settings_before(folder: RunDir, config: TrainingConfig) -> dict[str, Any]:
    """The settings that a run began with, by flat name. InputError where one changed it that no longer exists."""
    given = YamlFile.read(folder.config).values
    known = {name: part.model_fields for name, part in parts(type(config)).items()}
    inside = {name: given[name] for name in known if isinstance(given.get(name), dict)}
    for settings in (given, *inside.values()):
        if odd := [f"{name} {settings[name]}" for name in OFF.keys() & settings if settings[name] != OFF[name]]:
            raise InputError(f"{folder.path} began with {odd[0]}, which no longer exists; start a new run")
    kept = {name: {k: v for k, v in own.items() if k in known[name]} for name, own in inside.items()}
    return flattened(type(config), given | kept)


def _chosen_before(
    folder: RunDir, config: TrainingConfig, names: Iterable[str], processes: Processes
) -> dict[str, int | bool]:
    """What was chosen of these settings when a resumed run began: the last bits of all numbers depend on it."""
    if not folder.config.exists():
        return {}
    before = _settings_before(folder, config)
    found = {name: before[name] for name in names if isinstance(before.get(name), int)}
    # A run that moves to a CPU can do neither there.
    return found if processes.device.type == "cuda" else {k: v for k, v in found.items() if k == "token_budget"}


def _report_changes(folder: RunDir, config: TrainingConfig, resumed: Checkpoint | None) -> None:
    """A run may resume with other settings, but not silently."""
    before = folder.recorded(_settings_before(folder, config))
    now = folder.recorded(config.flat_dump())
    changed = {
        k: f"{k} {before[k]} → {v}"
        for k, v in now.items()
        if k not in UNIMPORTANT
        and k in before
        and before[k] != v
        and not (k in CHOSEN and v is None)
        and not _same_file(before[k], v, folder.path)
    }
    if resumed and (fixed := [change for k, change in changed.items() if k in SHAPE]):
        raise InputError(f"{resumed.path} has weights of another shape; a run keeps the one it began with:", fixed)
    if changed:
        log.warning("Resuming with other settings than the run began with: %s.", "; ".join(changed.values()))


def _same_file(before: Any, now: Any, folder: Path) -> bool:
    """Whether two settings name one file: a record names it relative to the working directory of its time."""
    if not isinstance(before, str) or not isinstance(now, str):
        return False
    old, new = ({one.resolve() for one in candidates(written, folder)} for written in (before, now))
    return bool(old & new)


# The policy that a run trains: the base model, its adapter, its reference, in the right place and precision.


def load_policy(
    config: TrainingConfig,
    start: Path | None,
    resumed: Checkpoint | None,
    processes: Processes,
    *,
    reference: bool,
    temperature: float = 1.0,
) -> Policy:
    """The policy as the run begins or resumes.

    `start` is the adapter that the run starts from. With `reference` it is also kept as it
    was, beside the one that is trained. `temperature` is that of the log-probabilities.
    """
    name = base_and_adapter(config.model)[0]
    actor = start
    if resumed:
        log.warning("Resuming from step %d.", resumed.step)
        name, actor = (name, resumed.weights) if config.lora.enabled else (str(resumed.weights), None)
    torch.manual_seed(config.seed)  # a new adapter is drawn at random
    device = processes.device
    _check_machine(config, device)
    autocast = precision(config, device)
    # Frozen weights may be in the type they are computed with; in trained ones small steps must not round to nothing.
    dtype = autocast if autocast and config.lora.enabled else torch.float32
    # A model that is sharded may be too large for one GPU until it is.
    place = torch.device("cpu") if config.machine.shard else device
    model = load_model(name, dtype=dtype, device=place, quantize=config.lora.qlora)
    if config.machine.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if not config.lora.enabled:
        freeze_surroundings(model)
    elif actor is None:
        model = add_actor(model, lora(config.lora))
    elif resumed or not config.lora.merge:
        model = load_actor(model, actor, dropout=config.lora.dropout)
    else:
        model = grow(model, actor, lora(config.lora))
    if reference and start:
        add_reference(model, start)
    policy = Policy(
        model,
        attention=config.machine.attention,
        autocast=autocast,
        compile=bool(config.machine.compile),
        device=device,
    )
    policy.temperature = temperature
    policy.router_coefficient = coefficient(policy.decoder, config.optimizer.router_aux_loss_coef)
    if policy.router_coefficient and config.machine.compile:
        raise InputError(
            "--compile does not go with the load-balancing loss of a mixture of experts; add --router-aux-loss-coef 0"
        )
    if config.machine.shard:
        policy.shard(device)
    return policy


def _check_machine(config: TrainingConfig, device: torch.device) -> None:
    """InputError that lists all settings that do not go with the machine or with each other."""
    machine = config.machine
    together = ["--qlora"] if config.lora.qlora else []
    together += ["--compile"] if machine.compile else []
    together += ["--cuda-graphs"] if machine.cuda_graphs else []
    together += [f"--optimizer {config.optimizer.name}"] if config.optimizer.name != "adamw" else []
    problems = [f"--shard does not go with {name}" for name in together if machine.shard]
    if machine.shard and not torch.distributed.is_initialized():
        problems.append("--shard needs several processes: accelerate launch --num_processes 2 -m bough …")
    elif machine.shard and device.type == "cuda" and torch.distributed.get_backend() == "gloo":
        problems.append("--shard needs a GPU for each process: gloo, by which processes share a GPU, cannot do it")
    if machine.cuda_graphs:
        problems += [f"--cuda-graphs does not go with {name}" for name in not_recorded(config)]
    on_cuda = {
        "--compile": machine.compile,
        "--cuda-graphs": machine.cuda_graphs,
        "--qlora": config.lora.qlora,
    }
    if device.type != "cuda":
        problems += [f"{name} needs a CUDA device; this is {device.type}" for name, given in on_cuda.items() if given]
    if problems:
        raise InputError("these settings cannot be used here:", problems)


def precision(config: TrainingConfig, device: torch.device) -> torch.dtype | None:
    """The type that matrix products are computed in, None for float32."""
    bf16 = device.type == "cuda" if config.machine.bf16 is None else config.machine.bf16
    return torch.bfloat16 if bf16 else None


# What a run was made from, as digests in its folder: a run that resumes must still be that run.
# Names and paths are in the settings, but a folder may have been trained again under its name and a file written
# again. `origin.json` says what they contained when the run began.

# From a checkpoint's weights to the run folder: weights, step-N, checkpoints.
DEPTH = 3


@dataclass(frozen=True)
class Origin:
    """Digests of the base model, of the start adapter, and of the examples of the training and the held-out file."""

    model: str
    adapter: str | None = None
    examples: str | None = None
    held_out: str | None = None

    @classmethod
    def of(cls, config: TrainingConfig, start: Path | None, examples: str | None, held_out: str | None) -> Origin:
        """What a run with these settings is made from now."""
        return cls(
            model=model_digest(base_and_adapter(config.model)[0]),
            adapter=folder_digest(start) if start else None,
            examples=examples,
            held_out=held_out,
        )

    @classmethod
    def read(cls, run: RunDir) -> Origin:
        """What the run was made from when it began."""
        try:
            return cls(**read_json(run.origin))
        except (OSError, ValueError, TypeError):
            raise InputError(
                f"{run.origin} is missing or damaged, so it is not known what this run was trained from; "
                "start again with --overwrite or another --output-dir"
            ) from None

    def write(self, run: RunDir) -> None:
        write_json(run.origin, asdict(self))

    def differences(self, before: Origin, config: TrainingConfig, start: Path | None) -> list[str]:
        """Why a run that was made from `before` cannot resume with what is there now."""
        found = []
        if self.model != before.model:
            found.append(f"the model {config.model} is not the one the run began with, or has changed since")
        if self.adapter != before.adapter:
            found.append(f"the start adapter {start or 'none'} is not the one the run began with, or has changed since")
        if self.examples != before.examples:
            found.append(
                f"the examples of {config.data.train_file} are not those the run began with: the file or a setting "
                "that they depend on (--model, --chat-template, --max-length, --format) has changed"
            )
        return found


def run_of(weights: Path) -> RunDir | None:
    """The run that trained `weights`; None where they are in no run folder."""
    return next((RunDir(one) for one in weights.absolute().parents[:DEPTH] if RunDir(one).origin.is_file()), None)


def start_of(weights: Path) -> Path | None:
    """The adapter that the run which trained `weights` started from; None where that was the bare model.

    InputError where it is not known, or is not what it was.
    """
    run = run_of(weights)
    if run is None:
        raise InputError(f"{weights} is not in a run folder, so it is not known what it was trained from")
    before = Origin.read(run).adapter
    if before is None:
        return None
    settings = flattened(TrainingConfig, YamlFile.read(run.config).values)
    written = settings.get("adapter") or str(settings.get("model"))
    for start in candidates(written, run.path):
        if start.is_dir() and folder_digest(start) == before:
            return start
    raise InputError(f"{written}, the adapter that {run.path} started from, is not there or has changed since")

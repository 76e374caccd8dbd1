"""A training run from its settings to weights on disk, the same for every method.

    settings → run folder → template, examples → policy → loop → weights, report

`train` learns from data. `Run` is what it is made of, for runs that get their examples elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

from bough import bit_exact
from bough.config.cluster import ClusterConfig
from bough.config.parts import flattened, leaves
from bough.config.training import TrainingConfig
from bough.config.yaml_file import YamlFile
from bough.disk import write_json
from bough.errors import InputError
from bough.ledger import Ledger
from bough.methods.base import Data, Example, Examples, Method
from bough.paths import candidates
from bough.policy.load import load_call_builder
from bough.policy.policy import Policy
from bough.policy.processes import Processes
from bough.policy.reference import ReferenceLogprobs
from bough.policy.saving import save_policy
from bough.policy.shape import start_adapter
from bough.rundir import RunDir
from bough.terminal.training import TrainingProgress
from bough.tracking.trackers import Trackers
from bough.training.acceleration import accelerated
from bough.training.checkpoint import Checkpoint, checkpoints
from bough.training.counters import Counters
from bough.training.interrupts import Interrupts, StoppedError
from bough.training.loading import load_policy, precision
from bough.training.loop import Trainer
from bough.training.origin import Origin
from bough.training.source import PlannedSource, Source
from bough.training.token_budget import choose_budget

log = logging.getLogger(__name__)
# Settings that do not change what is computed.
UNIMPORTANT = {
    *("resume", "overwrite", "output_dir", "logging_steps", "save_steps", "save_total_limit", "report_to"),
    *leaves(ClusterConfig),
}
# Settings that say what shape the trained weights have; a checkpoint of them has fixed it.
SHAPE = {"use_lora", "lora_r", "lora_alpha", "lora_target_modules", "lora_experts"}

# Settings of the machine that a run decides by itself where they are left open.
CHOSEN = ("token_budget", "compile", "cuda_graphs")

C = TypeVar("C", bound=TrainingConfig)


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
    config: TrainingConfig, method: Method[Any], data: Data | None = None, held_out: Data | None = None
) -> Trained:
    """Trains a policy on data: `train_file` and `eval_file` of the settings, or the files or records given here."""
    data = config.data.train_file if data is None else data
    held_out = config.data.eval_file if held_out is None else held_out
    with opened(config) as run:
        training = method.examples(data, run.builder)
        evaluation = method.examples(held_out, run.builder) if held_out is not None else Examples[Any]()
        # A reference that is computed in advance finds its log-probabilities by the call objects.
        examples = list(training.examples) if _computes_reference(method, config) else training.examples
        source = PlannedSource(examples, run.config)
        run.begin(training.digest, evaluation.digest, source)
        policy = run.load_policy(reference=method.needs_reference, temperature=method.temperature)
        ledgers = [training.rows, training.calls]
        with run.trainer(policy, method, source, held_out=list(evaluation.examples), ledgers=ledgers) as trainer:
            run.precompute(trainer, examples)
            counters = trainer.train(run.resumed, same_held_out=run.same_held_out)
        return run.finish(counters, [ledger.to_json() for ledger in ledgers])


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
        self.resumed = _newest_checkpoint(folder, config)
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

    def load_policy(self, *, reference: bool, temperature: float | None, whole: bool = False) -> Policy:
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

    def _check_recordings(self, policy: Policy) -> None:
        """Leaves recordings out where the run chose them itself and this model cannot be recorded after all."""
        if not self.config.machine.cuda_graphs or "cuda_graphs" not in self.left_open:
            return
        if reasons := policy.layers.not_recordable():
            log.warning("cuda_graphs: off (this model cannot be recorded: %s).", ", ".join(reasons))
            self._set_machine(cuda_graphs=False)
            if self.processes.first:
                self.folder.create(self.config)

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
        """The training loop, with progress and trackers open around it. `ledgers` are shown before the first step.

        `reference` stands in for the policy's own, such as a teacher on a server.
        """
        self._check_recordings(policy)
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
                held_out=held_out, processes=self.processes, report=report, reference=reference,
                interrupts=self.interrupts,
            )  # fmt: skip
            if first:
                progress.begin(len(source), *ledgers)
            yield trainer

    def precompute(self, trainer: Trainer, examples: Sequence[Example]) -> None:
        """Reference log-probabilities before the first step: where asked for, and where all weights are trained."""
        config, method = self.config, trainer.method
        if trainer.reference is None or not _computes_reference(method, config):
            return
        calls = [call for example in [*examples, *trainer.held_out] for call in example.calls]
        computed_in = precision(config, self.processes.device)
        name = f"{self.origin.model}|{self.origin.adapter}|{computed_in}|{config.lora.qlora}"
        reload: Callable[[], Policy] | None = None
        if self.resumed and not config.lora.enabled:
            reload = partial(self._initial_policy, method.temperature)
        trainer.reference.compute(calls, config.machine.tokens_per_pass, self.folder.cache, name, start=reload)

    def finish(self, counters: Counters, ledgers: list[dict[str, Any]]) -> Trained:
        """Writes the ledgers and the report. An interrupt that came too late to stop the training is raised then."""
        if self.processes.first:
            write_json(self.folder.ledger, ledgers)
            write_json(self.folder.report, asdict(counters) | {"weights": self.folder.final.name})
        trained = Trained(self.folder.final, counters, ledgers)
        if self.interrupts.requested:
            raise trained.interrupted()
        return trained

    def _initial_policy(self, temperature: float | None) -> Policy:
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


def _computes_reference(method: Method[Any], config: TrainingConfig) -> bool:
    return method.needs_reference and (not config.lora.enabled or method.precompute_reference)


def _newest_checkpoint(folder: RunDir, config: TrainingConfig) -> Checkpoint | None:
    """The checkpoint to resume from, checked."""
    found = checkpoints(folder.checkpoints) if config.resume else []
    if not found:
        if config.resume:
            log.warning("%s has no checkpoint yet; starting from the beginning.", folder.path)
        return None
    found[-1].check()
    return found[-1]


def _chosen_before(
    folder: RunDir, config: TrainingConfig, names: Iterable[str], processes: Processes
) -> dict[str, int | bool]:
    """What was chosen of these settings when a resumed run began: the last bits of all numbers depend on it."""
    if not folder.config.exists():
        return {}
    before = flattened(type(config), YamlFile.read(folder.config).values)
    found = {name: before[name] for name in names if isinstance(before.get(name), int)}
    # A run that moves to a CPU can do neither there.
    return found if processes.device.type == "cuda" else {k: v for k, v in found.items() if k == "token_budget"}


def _report_changes(folder: RunDir, config: TrainingConfig, resumed: Checkpoint | None) -> None:
    """A run may resume with other settings, but not silently."""
    before = folder.recorded(flattened(type(config), YamlFile.read(folder.config).values))
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

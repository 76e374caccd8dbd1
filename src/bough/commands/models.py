"""Models as the API takes and gives them: by name, in a folder, loaded into memory, or just trained."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bough.chat.template import CallBuilder, ChatTemplate, load_template
from bough.commands.objects import StrPath
from bough.config.groups import SamplingConfig
from bough.engines.chat import TemplateEngine
from bough.errors import InputError
from bough.ledger import plural
from bough.models.resolve import context_length
from bough.policy.load import base_and_adapter
from bough.rollouts.episode import ModelAgent
from bough.types import Call, Group, Pair, Trajectory

if TYPE_CHECKING:
    from bough.engines.local.engine import LocalEngine
    from bough.policy.policy import Policy


class LoadedModel:
    """A model in memory: its weights, its chat template, and an engine that samples from these very weights.

    `policy` computes log-probabilities and can be trained by any torch optimizer; `engine`
    draws tokens from the same weights. `bough.collect` takes a loaded model as it is, so
    that every collection is played with the weights of that moment.
    """

    def __init__(self, name: str, policy: Policy, template: ChatTemplate) -> None:
        self.name, self.policy, self.template = name, policy, template
        self._builder = CallBuilder(template, context=context_length(base_and_adapter(name)[0]))
        self._times_sampled = 0

    @property
    def tokenizer(self) -> Any:
        return self.template.tokenizer

    @cached_property
    def engine(self) -> LocalEngine:
        """Token ids in, token ids and log-probabilities out. Call its `renew` after the weights have changed."""
        from bough.engines.local.engine import LocalEngine

        return LocalEngine.of(self.policy, name=self.name, tokenizer=self.tokenizer)

    def calls(self, record: Trajectory | Pair | Group) -> list[list[Call]]:
        """The exact tokens of a record: one list of calls for each attempt, or for chosen and rejected.

        Recorded calls are used as they are; others are made with the chat template.
        Raises InputError where a turn cannot be turned into a call.
        """
        if isinstance(record, Pair):
            units = [(record.start, side, record.tools) for side in (record.chosen, record.rejected)]
        else:
            attempts = record.attempts if isinstance(record, Group) else [record]
            units = [(one.start, one.turns, one.tools) for one in attempts]
        found: list[list[Call]] = []
        for start, turns, tools in units:
            found.append([])
            for built in self._builder.build(start, turns, tools):
                if built.call is None:
                    raise InputError(f"turn {built.turn + 1} cannot be trained ({built.reason}): {built.message}")
                found[-1].append(built.call)
        return found

    def agent(self, sampling: SamplingConfig) -> ModelAgent:
        """An agent that plays with the weights as they are now."""
        self._times_sampled += 1
        self.policy.temperature = sampling.temperature or 1.0  # log-probabilities are those of the sampler
        self.engine.renew(f"{self.name}@{self._times_sampled}")
        self.engine.rest()
        return _LentAgent(TemplateEngine(self.engine, self.template, sampling, scorer=self.policy))

    def save(self, folder: StrPath) -> Path:
        """Writes the adapter, or all weights where there is none, for `transformers`, `peft` and every command."""
        from bough.policy.load import save_policy

        save_policy(self.policy, self.tokenizer, Path(folder))
        return Path(folder)

    def __repr__(self) -> str:
        trained = sum(weights.numel() for weights in self.policy.parameters() if weights.requires_grad)
        return f"<{self.name} on {self.policy.device}, {trained:,} trained weights>"


class _LentAgent(ModelAgent):
    """An agent on an engine that outlives it."""

    async def close(self) -> None:
        return


class TemporaryFolder:
    """A folder that is removed when nothing refers to this object any more, or the program ends."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="bough-"))
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


class TrainedModel:
    """What `bough.sft`, `bough.dpo` and `bough.grpo` return: the weights on disk, and how training went.

    `path` is the weights' folder: an adapter (or a whole model) that every function here,
    `transformers` and `peft` load. Where no output_dir was given it is a temporary folder
    that is removed with this object; `save` copies it. `metrics` has one dictionary per
    logged step, `report` the counters at the end, `ledgers` what became of every record.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        *,
        metrics: Sequence[dict[str, Any]],
        report: dict[str, Any],
        ledgers: Sequence[dict[str, Any]],
        keeps: Sequence[Any] = (),
    ) -> None:
        self.name, self.path = name, path
        self.metrics, self.report, self.ledgers = list(metrics), report, list(ledgers)
        self._keeps = keeps  # temporary folders that must not go before this object does

    def __fspath__(self) -> str:
        return str(self.path)

    def save(self, folder: StrPath) -> Path:
        """Copies the weights to a folder that does not exist yet."""
        if Path(folder).exists():
            raise InputError(f"{folder} exists; name a folder that does not")
        shutil.copytree(self.path, folder)
        return Path(folder)

    def __repr__(self) -> str:
        facts = [plural(self.report["step"], "step")]
        for name in ("loss", "accuracy", "reward", "success"):
            if values := [line[name] for line in self.metrics if name in line]:
                facts.append(f"{name} {values[0]:.4g} → {values[-1]:.4g}")
        return f"<{self.name}: {', '.join(facts)}; weights in {self.path}>"


ModelLike = str | os.PathLike[str] | LoadedModel


def model_name(model: ModelLike) -> str:
    """The name or folder by which the settings refer to a model."""
    if isinstance(model, LoadedModel):
        return model.name
    if not isinstance(model, str | os.PathLike):
        raise InputError(
            f"a model is a name, a folder, or what bough.load or training returned, not a {type(model).__name__}"
        )
    return str(os.fspath(model))


def load(
    model: ModelLike = "smollm2", *, chat_template: StrPath | None = None, seed: int = 0, **options: Any
) -> LoadedModel:
    """Load a model into memory, to sample from and to train by hand.

    `model` is a name, a folder (of an adapter too), a hub id or a trained model. `options`
    are those of `Policy.load`: `lora=bough.Lora(r=16)` adds a new adapter, `adapter` loads
    one, `dtype`, `device`, `quantize`, `gradient_checkpointing` and `attention` say how it
    is kept and computed. `seed` fixes the draw of a new adapter's weights.
    """
    import torch

    from bough.policy.policy import Policy

    name = model_name(model)
    torch.manual_seed(seed)
    template = load_template(base_and_adapter(name)[0], Path(chat_template) if chat_template else None)
    return LoadedModel(name, Policy.load(name, **options), template)

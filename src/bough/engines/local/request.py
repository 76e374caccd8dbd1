"""One pending call: what was asked, what was drawn so far, and when it ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bough.config.sampling import SamplingConfig
from bough.engines.base import Generated
from bough.engines.local.draw import uniform
from bough.engines.local.stops import StopTexts
from bough.types import Finish


@dataclass(eq=False)
class Request:
    """A call. `limit` is how many tokens prompt and answer may have together.

    `deliver` receives the outcome, once; `given_up` is set by a caller who no longer waits.
    """

    episode: str
    prompt_ids: list[int]
    sampling: SamplingConfig
    seed: int
    stop_ids: frozenset[int]
    stops: StopTexts
    limit: int
    deliver: Callable[[Generated | BaseException], None]
    completion_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    given_up: bool = False
    _uniforms: list[float] = field(default_factory=list)

    @property
    def most(self) -> int:
        """How many tokens it may come to."""
        return min(len(self.prompt_ids) + self.sampling.max_new_tokens, self.limit)

    def after(self, known: int) -> list[int]:
        """The tokens after the first `known`, as far as they exist."""
        if known >= len(self.prompt_ids):
            return self.completion_ids[known - len(self.prompt_ids) :]
        return self.prompt_ids[known:] + self.completion_ids

    def foresee(self, number: int) -> list[float]:
        """The numbers between 0 and 1 with which the next tokens are drawn."""
        done = len(self.completion_ids)
        self._uniforms += [uniform(self.seed, place) for place in range(len(self._uniforms), done + number)]
        return self._uniforms[done : done + number]

    def take(self, token: int, logprob: float) -> Generated | None:
        """Adds a token; the answer, if that was the last."""
        self.completion_ids.append(token)
        self.logprobs.append(logprob)
        finish: Finish
        if token in self.stop_ids or self.stops.met(self.completion_ids):
            finish = "stop"
        elif len(self.prompt_ids) + len(self.completion_ids) >= self.most:
            finish = "length"
        else:
            return None
        return Generated(
            self.completion_ids, self.logprobs, finish, logprobs_temperature=self.sampling.temperature or 1.0
        )

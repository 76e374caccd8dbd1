"""The policy as an agent at each temperature that attempts are sampled at."""

from __future__ import annotations

from bough.calls.template import ChatTemplate
from bough.engines.base import TokenEngine
from bough.engines.chat import TemplateEngine
from bough.methods.distill import OnlineConfig
from bough.rollouts.agents import ModelAgent
from bough.rollouts.attempt import Attempt


class TemperatureAgents:
    """Says who plays an attempt: the model at the attempt's temperature."""

    def __init__(self, config: OnlineConfig, tokens: TokenEngine, template: ChatTemplate) -> None:
        sampling, held_out = config.sampling, config.held_out
        self._engines = {
            temperature: TemplateEngine(tokens, template, sampling.model_copy(update={"temperature": temperature}))
            for temperature in {*sampling.all_temperatures, held_out.temperature}
        }

    def __call__(self, attempt: Attempt, tokens: TokenEngine | None = None) -> ModelAgent:
        """The agent, on the tokens of another engine if one is given."""
        assert attempt.temperature is not None
        engine = self._engines[attempt.temperature]
        return ModelAgent(engine if tokens is None else engine.over(tokens))

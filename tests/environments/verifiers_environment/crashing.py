"""A harness whose program ends with an error, after a request or before it."""

from __future__ import annotations

from typing import Any

import verifiers.v1 as vf
from verifiers.v1.harnesses.null import NullHarness, NullHarnessConfig


class CrashingConfig(NullHarnessConfig):
    asks_first: bool = False


class Crashing(NullHarness, vf.Harness[CrashingConfig]):
    async def launch(self, *args: Any, **more: Any) -> vf.ProgramResult:
        if self.config.asks_first:
            await super().launch(*args, **more)
        return vf.ProgramResult(exit_code=3, stdout="", stderr="the harness fell over")


__all__ = ["Crashing"]

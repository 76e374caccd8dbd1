"""A teacher on a server: the log-probabilities it gives to the student's tokens.

The server gets each call's tokens as a prompt and echoes them with their log-probabilities, as
vLLM's `/v1/completions` does. It sees ids, so its tokenizer must be the student's.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bough.engines.base import EngineError
from bough.engines.http import RequestRefusedError, Server
from bough.errors import InputError, short_repr
from bough.event_loop import BackgroundLoop
from bough.trees.pack import PlainRow, TreeRow
from bough.types import Call

PROBE = "THOUGHT: 12 apples, naïve 東京.\nACTION: go to shelf 1"
# What rounding may add to the log-probability of a certain token.
TOLERANCE = 1e-3


class TeacherServer:
    """Stands in for a reference: its log-probabilities are the teacher's."""

    def __init__(self, url: str, model: str, tokenizer: Any, key_variable: str, device: torch.device) -> None:
        self.model, self.tokenizer, self.device = model, tokenizer, device
        self.server = Server(url.rstrip("/"), key_variable=key_variable)
        self._loop = BackgroundLoop()

    def check(self) -> None:
        """InputError unless the server can score the student's tokens."""
        self._loop.run(self._check())

    def of(self, rows: Sequence[TreeRow | PlainRow], calls: Sequence[Call]) -> list[list[Tensor]]:
        """For each row one tensor for each of its calls, in the row's order."""
        return self._loop.run(self._of(rows, calls))

    def close(self) -> None:
        self._loop.run(self.server.close())
        self._loop.close()

    async def _of(self, rows: Sequence[TreeRow | PlainRow], calls: Sequence[Call]) -> list[list[Tensor]]:
        numbers = [c for row in rows for c in row.calls]
        found = dict(zip(numbers, await asyncio.gather(*(self._score(calls[c]) for c in numbers)), strict=True))
        return [[found[c] for c in row.calls] for row in rows]

    async def _score(self, call: Call) -> Tensor:
        _, values = await self._echo([*call.prompt_ids, *call.completion_ids])
        mine = values[len(call.prompt_ids) : len(call.prompt_ids) + len(call.completion_ids)]
        if len(mine) < len(call.completion_ids) or any(value is None for value in mine):
            raise EngineError(f"{self.server.url} gave {len(mine)} log-probabilities for {len(call.completion_ids)}")
        return torch.tensor(mine, device=self.device)

    async def _echo(self, ids: list[int]) -> tuple[list[str], list[float | None]]:
        """The texts of the tokens, and their log-probabilities; the first has none."""
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
        answer = await self.server.post("/completions", body)
        try:
            logprobs = answer["choices"][0]["logprobs"]
            texts, values = list(logprobs["tokens"]), list(logprobs["token_logprobs"])
        except (KeyError, IndexError, TypeError):
            raise EngineError(f"{self.server.url} answered without log-probabilities of the prompt") from None
        if invalid := [text for text in texts if not isinstance(text, str)]:
            raise EngineError(f"{self.server.url} gave {short_repr(invalid[0])} as the text of a token")
        if invalid := [value for value in values[: len(ids)] if value is not None and not _is_logprob(value)]:
            raise EngineError(f"{self.server.url} gave {short_repr(invalid[0])} as the log-probability of a token")
        return texts, values

    async def _check(self) -> None:
        if not self.model:
            try:
                listed = (await self.server.get("/models"))["data"]
                names = [str(one["id"]) for one in listed]
            except (KeyError, TypeError):
                names = []
            if len(names) != 1:
                raise InputError(f"the server at {self.server.url} has {len(names)} models; choose with --server-model")
            self.model = names[0]
        ids = self.tokenizer(PROBE, add_special_tokens=False)["input_ids"]
        refusal = f"the server at {self.server.url} cannot be the teacher: "
        try:
            texts, values = await self._echo(ids)
        except (RequestRefusedError, EngineError) as error:
            raise InputError(f"{refusal}it must echo a prompt of token ids with log-probabilities ({error})") from None
        if len(values) < len(ids) or any(value is None for value in values[1 : len(ids)]):
            raise InputError(f"{refusal}it gives no log-probabilities of the prompt")
        ascii_only = [(self.tokenizer.decode([id]), text) for id, text in zip(ids, texts, strict=False)]
        if different := [pair for pair in ascii_only if pair[0].isascii() and pair[0].strip() != pair[1].strip()]:
            raise InputError(
                f"{refusal}it has another tokenizer (it reads {different[0][1]!r} where the student wrote "
                f"{different[0][0]!r}). bough corrections --by {self.server.url} learns from its replies instead"
            )


def _is_logprob(value: Any) -> bool:
    return type(value) in (int, float) and -math.inf < value <= TOLERANCE

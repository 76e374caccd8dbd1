"""Keys and values on a GPU in pages of a fixed number of tokens.

An episode has a list of pages, and a row in a table on the GPU that says which. Episodes
that start alike share the full pages of what they have in common; a page that others hold
too is replaced by a copy before it is written to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bough.engines.local.reader import TokenReader
from bough.engines.local.schedule import Resident, Store

PAGE = 64  # tokens
TILE = 64  # rows of one program in attention over prompts: tokens times the heads that share keys


@dataclass(eq=False)
class Pages:
    """The place of a resident: its row of the table, and its pages in order."""

    row: int
    pages: list[int] = field(default_factory=list)


class PagesStore(Store):
    """`kv` is [layers, 2, pages, heads, PAGE, size]. A resident's cost is its number of pages.

    Row 0 and page 0 belong to no resident: padding is computed there.
    """

    def __init__(self, reader: TokenReader, *, num_pages: int, length: int) -> None:
        self.num_pages, self.length = num_pages, length
        shape = (reader.num_layers, 2, num_pages + 1, reader.num_heads, PAGE, reader.head_size)
        self.kv = torch.zeros(shape, dtype=reader.dtype, device=reader.device)
        self.table = torch.zeros(num_pages + 1, self.cost(length), dtype=torch.int32, device=reader.device)
        self._free = list(range(num_pages, 0, -1))
        self._rows = list(range(num_pages, 0, -1))
        self._holders = [0] * (num_pages + 1)
        self._changed: dict[int, Pages] = {}

    def cost(self, tokens: int) -> int:
        return -(-tokens // PAGE)

    def allocate(self, resident: Resident, tokens: int) -> None:
        place = resident.place or Pages(self._rows.pop())
        place.pages += [self._take() for _ in range(self.cost(tokens) - len(place.pages))]
        resident.place, resident.capacity = place, len(place.pages)
        self._changed[place.row] = place

    def copy(self, source: Resident, target: Resident, begin: int, end: int) -> None:
        """Gives the target the source's tokens up to `end`; it has those before `begin` already."""
        self.own(target, begin)
        for number in range(begin // PAGE, self.cost(end)):
            theirs, mine = source.place.pages[number], target.place.pages[number]
            first, last = max(begin - number * PAGE, 0), min(end - number * PAGE, PAGE)
            if last == PAGE:
                self._release(mine)
                self._holders[theirs] += 1
                target.place.pages[number] = theirs
            else:
                self.kv[:, :, mine, :, first:last] = self.kv[:, :, theirs, :, first:last]
        self._changed[target.place.row] = target.place

    def own(self, resident: Resident, begin: int) -> None:
        """Lets the resident write from token `begin` on without changing what others hold."""
        pages = resident.place.pages
        for number in range(begin // PAGE, len(pages)):
            shared = pages[number]
            if self._holders[shared] == 1:
                continue
            pages[number] = self._take()
            if number * PAGE < begin:
                self.kv[:, :, pages[number]] = self.kv[:, :, shared]
            self._release(shared)
            self._changed[resident.place.row] = resident.place

    def free(self, resident: Resident) -> None:
        for page in resident.place.pages:
            self._release(page)
        self._changed.pop(resident.place.row, None)
        self._rows.append(resident.place.row)
        super().free(resident)

    def upload(self) -> None:
        """Brings the table on the GPU up to date."""
        if not self._changed:
            return
        rows = np.zeros((len(self._changed), 1 + self.table.shape[1]), np.int32)
        for row, place in zip(rows, self._changed.values(), strict=True):
            row[0] = place.row
            row[1 : 1 + len(place.pages)] = place.pages
        new = torch.from_numpy(rows).to(self.table.device)
        self.table.index_copy_(0, new[:, 0].long(), new[:, 1:])
        self._changed = {}

    def _take(self) -> int:
        page = self._free.pop()
        self._holders[page] = 1
        return page

    def _release(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page] == 0:
            self._free.append(page)


class Tokens(NamedTuple):
    """T tokens: where each belongs, and the blocks of consecutive ones that attention takes together.

    Block b has `count_B[b]` tokens from token `first_B[b]` on, all of one episode; `size` is the
    most that a block may have. Blocks of no tokens are padding. `slot_T` says which adapter each
    token is computed with; None: the policy as it is.
    """

    position_T: Tensor
    row_T: Tensor
    first_B: Tensor
    count_B: Tensor
    size: int
    slot_T: Tensor | None = None


def block_size(repeats: int) -> int:
    """How many tokens of a prompt one program attends for, where `repeats` heads share keys."""
    return max(TILE >> (repeats - 1).bit_length(), 1)


# A step as a CUDA graph: recorded once for each shape, then played back in one launch.

WARM_UP = 2  # kernels choose their ways, and libraries take their memory, before anything is recorded


class Graphs:
    """Plays `step(*shape)` back. The step reads tensors that stay where they are, and only those."""

    def __init__(self, step: Callable[..., Tensor]) -> None:
        self.step = step
        self._recorded: dict[tuple[Any, ...], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self._pool: Any = None
        self._stream: torch.cuda.Stream | None = None

    def __contains__(self, shape: tuple[Any, ...]) -> bool:
        return shape in self._recorded

    def forget(self) -> None:
        """Drops what was recorded: the step has changed."""
        self._recorded, self._pool = {}, None

    def __call__(self, *shape: Any) -> Tensor:
        if shape not in self._recorded:
            self.record(*shape)
        graph, output = self._recorded[shape]
        graph.replay()
        return output

    def record(self, *shape: Any) -> None:
        """Records a shape; the step is computed for it a few times, with all its effects."""
        # Kernels keep the priority of the stream on which they are recorded: beside a trainer's they go first.
        # All graphs share one stream, because memory of a pool is used again only on the stream that had it.
        self._stream = stream = self._stream or torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                self.step(*shape)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Others may use the GPU meanwhile, from other threads.
        with torch.cuda.graph(graph, pool=self._pool, stream=stream, capture_error_mode="thread_local"):
            output = self.step(*shape)
        self._pool = self._pool or graph.pool()
        self._recorded[shape] = graph, output


def rounded(needed: int) -> int:
    """As few different numbers as will do: powers of two, and what is halfway between two of them."""
    power = max(1 << (needed - 1).bit_length(), 2)
    return power * 3 // 4 if power >= 16 and needed <= power * 3 // 4 else power

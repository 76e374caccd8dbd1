"""`bough serve`: serve a model over an OpenAI-compatible address and record every call."""

from __future__ import annotations

import asyncio
import signal

from bough import event_loop
from bough.api.serve import Served
from bough.config.serving import ServeConfig
from bough.terminal import console


def serve(config: ServeConfig) -> int:
    event_loop.run(_serve(config))
    return 0


async def _serve(config: ServeConfig) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    served = Served(config)
    try:
        await served.start()
        _tell(config, served.base_url)
        await stopped.wait()
    finally:
        await served.close()


def _tell(config: ServeConfig, base_url: str) -> None:
    if config.as_json:
        console.print_json({"base_url": base_url, "record": str(config.record)})
        return
    out = console.out()
    out.print(f"Serving {config.agent.model} at", markup=False)
    out.print(base_url, style="bold", markup=False)
    sessions = base_url.removesuffix("/v1")
    out.print(f"a session: {sessions}/s/NAME/v1, closed by POST {sessions}/s/NAME/end", markup=False)
    out.print(f"recording in {config.record}; Ctrl-C stops", markup=False)

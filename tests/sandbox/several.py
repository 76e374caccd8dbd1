"""Runs programs one after the other in a sandbox: `python several.py WALLS`, a JSON list in, their results out."""

import asyncio
import json
import sys
from dataclasses import asdict

from bough.sandbox.base import SandboxLimits
from bough.sandbox.pool import Sandbox


async def main() -> None:
    limits = SandboxLimits(timeout_s=60, disk_mb=8)
    async with Sandbox(limits, workers=1, isolation=sys.argv[1]) as sandbox:
        print(json.dumps([asdict(await sandbox.run(code)) for code in json.load(sys.stdin)]))


if __name__ == "__main__":
    asyncio.run(main())

"""Runs untrusted Python in isolation.

    async with Sandbox(SandboxLimits(timeout_s=5)) as sandbox:
        result = await sandbox.run("sum(range(10))")          # a process of its own; result.value == "45"
        async with sandbox.session() as session:              # a notebook: names persist between cells
            await session.run("x = 2")
            await session.run("x ** 10")

A worker is a pair of programs: on the host `worker.py`, which sends requests and watches
memory; inside an isolated environment made by bubblewrap or the kernel's namespaces, a
keeper (`inside/`) that forks a process for each program and kills everything that is left
of it.
"""

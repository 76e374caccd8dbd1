"""Runs Python that nobody has read, where it can do no harm.

    async with Sandbox(Limits(timeout_s=5)) as sandbox:
        result = await sandbox.run("sum(range(10))")          # a process of its own; result.value == "45"
        async with sandbox.session() as session:              # a notebook: names live on between cells
            await session.run("x = 2")
            await session.run("x ** 10")

A worker is a pair of programs: on this side `worker.py`, which asks and watches; on the
other, behind walls that bubblewrap or the kernel's namespaces put up, a keeper (`inside/`)
that forks a process for each program and kills everything that is left of it. `remote.py`
sends programs to a SandboxFusion server instead.
"""

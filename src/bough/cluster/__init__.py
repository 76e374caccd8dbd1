"""Episodes, learners and populations on a Ray cluster. Only functions in here import Ray.

How episodes are played there: `worker` is a process with an environment and an agent, `packing`
what it is made from, `remote_worker` how the driver sees it. `pool` keeps workers going,
`dispatch` chooses one for each attempt, and `runner` is what `rollouts` plays with.
"""

"""Episodes, learners and populations on a Ray cluster. Only functions in here import Ray.

A worker is a process with an object that the driver calls: `remote_worker` is how the driver sees it, and `pool`
starts and replaces workers. For episodes the object is a `worker`, made from what `packing` sends; `dispatch` chooses
one for each attempt, and `runner` is what `rollouts` plays with. A population calls its parts through `actors`.
"""

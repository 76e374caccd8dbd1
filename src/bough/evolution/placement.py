"""Which worker of a cluster has which members: shares of equal size, and members stay where they are if they can."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from bough.cluster.actors import Actor, Actors
from bough.errors import BoughError
from bough.evolution.generation import Generation
from bough.evolution.individual import Individual
from bough.evolution.member_files import description, read_files

# Work that every worker dies of is given up after this many times.
MAX_LOSSES = 5


def shares(names: Sequence[str], held: Mapping[int, Collection[str]]) -> dict[int, list[str]]:
    """The members of each worker, by its number. `held` are those that a worker has in memory.

    No share is larger than another by more than one. Workers without a share are left out.
    """
    rest, larger = len(names) // len(held), len(names) % len(held)
    found: dict[int, list[str]] = {number: [] for number in held}
    room = dict.fromkeys(held, rest)
    # The larger shares go to those who have the most members already.
    most = sorted(held, key=lambda number: (-sum(name in held[number] for name in names), number))
    room |= dict.fromkeys(most[:larger], rest + 1)
    homeless = []
    for name in names:
        home = next((number for number in held if name in held[number] and len(found[number]) < room[number]), None)
        if home is None:
            homeless.append(name)
        else:
            found[home].append(name)
    for name in homeless:
        found[min((len(own) - room[number], number) for number, own in found.items())[1]].append(name)
    return {number: sorted(own) for number, own in found.items() if own}


class Placement:
    """The members of a population in the memory of workers. A member is known by its name and how far it is trained."""

    def __init__(self, workers: Actors) -> None:
        self.workers = workers
        self._steps: dict[int, dict[str, int]] = {}

    def work(
        self,
        generation: Generation,
        names: Sequence[str],
        start: Callable[[Actor, list[str]], Any],
        *,
        ended: Callable[[Actor, Any], None] = lambda _worker, _result: None,
        each: Callable[[Collection[Actor]], None] = lambda _: None,
    ) -> list[Any]:
        """Results for all members: `start` begins the work of a worker on its share of them, which it has in memory.

        The share of a worker that is lost is done again by the others. `each` is called while they work,
        `ended` with the result of each of them.
        """
        return self._until_done(names, lambda left: self.placed(generation, left), start, ended, each)

    def found(self, founders: Sequence[Individual]) -> list[Any]:
        """The result of `Part.found` for all founders, which no worker has yet."""
        known = {founder.name: founder for founder in founders}

        def place(left: list[str]) -> dict[Actor, list[str]]:
            living = {worker.number: worker for worker in self.workers.living()}
            return {living[number]: own for number, own in shares(left, dict.fromkeys(living, ())).items()}

        return self._until_done(list(known), place, lambda w, own: w.start("found", [known[name] for name in own]))

    def placed(self, generation: Generation, names: Sequence[str]) -> dict[Actor, list[str]]:
        """Workers with their shares of the members, which are in their memory, and no others are."""
        steps = {name: generation.individual(name).step for name in names}
        for _ in range(MAX_LOSSES):
            living = {worker.number: worker for worker in self.workers.living()}
            self._steps = {number: self._steps.get(number, {}) for number in living}
            current = {
                number: [name for name, step in own.items() if steps.get(name) == step]
                for number, own in self._steps.items()
            }
            chosen = {living[number]: own for number, own in shares(names, current).items()}
            moves = {
                worker: own
                for worker, own in chosen.items()
                if self._steps[worker.number].keys() != set(own) or not set(own) <= set(current[worker.number])
            }
            done = self.workers.gather(
                {worker: self._load(worker, generation, own, current[worker.number]) for worker, own in moves.items()}
            )
            self.note({worker: {name: steps[name] for name in moves[worker]} for worker in done})
            if len(done) == len(moves):
                return chosen
        raise BoughError(f"workers of the cluster were lost {MAX_LOSSES} times while they loaded members")

    def note(self, steps: Mapping[Actor, Mapping[str, int]]) -> None:
        """Says how far the members in the memory of workers are trained."""
        self._steps |= {worker.number: dict(own) for worker, own in steps.items()}

    def _until_done(
        self,
        names: Sequence[str],
        place: Callable[[list[str]], dict[Actor, list[str]]],
        start: Callable[[Actor, list[str]], Any],
        ended: Callable[[Actor, Any], None] = lambda _worker, _result: None,
        each: Callable[[Collection[Actor]], None] = lambda _: None,
    ) -> list[Any]:
        results, left, losses = [], list(names), 0
        while left:
            chosen = place(left)
            started = {worker: start(worker, own) for worker, own in chosen.items()}
            done = self.workers.gather(started, lambda busy=started: each(busy))  # type: ignore[misc]
            for worker, result in done.items():
                ended(worker, result)
            results += list(done.values())
            left = [name for worker, own in chosen.items() if worker not in done for name in own]
            losses = 0 if done else losses + 1
            if losses >= MAX_LOSSES:
                raise BoughError(
                    f"all workers of the cluster were lost {losses} times in a row; the last error is above"
                )
        return results

    def _load(self, worker: Actor, generation: Generation, names: Sequence[str], there: Collection[str]) -> Any:
        files = {name: read_files(generation.folder(name)) for name in names}
        return worker.start("load", {n: description(own) if n in there else own for n, own in files.items()})

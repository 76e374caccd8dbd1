"""What becomes of learners' outcomes, and what each learner gets. tests/rollouts/ray/real has real learners."""

import os
import pickle
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bough.errors import BoughError, InputError
from bough.event_loop import Interrupts, StoppedError
from bough.policy.processes import ProcessLostError, packed_error
from bough.rollouts.ray import ClusterLostError
from bough.rollouts.ray_learners import Relay, RelayStream, asking, check_disk, followed, plan_learners, result
from bough.training.checkpoint import Counters
from bough.training.run import Trained

TRAINED = Trained(Path("run/final"), Counters(), [])


class TrainError(Exception):
    """What Ray Train raises."""

    def __init__(self, **failures: Exception) -> None:
        super().__init__("Training failed due to worker errors:\n…")
        self.worker_failures = {int(name[-1]): error for name, error in failures.items()}


def done() -> bytes:
    return pickle.dumps((TRAINED, None))


def test_the_result_is_that_of_the_first_learner():
    other = pickle.dumps((Trained(Path("other"), Counters(), []), None))
    assert result(2, {1: other, 0: done()}, None) == TRAINED
    with pytest.raises(StoppedError, match=r"^Stopped after step 0, the last one; the weights are in run/final\.$"):
        result(1, {0: done()}, None, interrupted=True)


def test_the_error_is_that_of_a_learner_as_it_was_raised_there():
    refused = packed_error(InputError("no such environment"))
    lost = packed_error(ProcessLostError())
    with pytest.raises(InputError, match="no such environment"):
        result(2, {0: lost, 1: refused}, TrainError(of_0=OSError("…"), of_1=ValueError("…")))


def test_a_learner_that_died_is_named_and_not_the_one_that_lost_its_connection():
    lost = packed_error(RuntimeError("Connection closed by peer"))
    killed = TrainError(of_0=RuntimeError("Connection closed by peer"), of_1=OSError("The actor died.\nmore"))
    with pytest.raises(BoughError, match=r"learner 2 of 2 has died \(The actor died\.\); --resume"):
        result(2, {0: lost}, killed)
    with pytest.raises(BoughError, match=r"learner 2 of 2 has died \(The actor died\.\); --resume"):
        result(2, {0: packed_error(ProcessLostError())}, killed)


def test_other_errors_are_said_with_the_learner():
    failed = {0: packed_error(ZeroDivisionError("division by zero"))}
    with pytest.raises(BoughError, match=r"learner 1 of 2 failed: division by zero; --resume"):
        result(2, failed, TrainError(of_0=ZeroDivisionError()))
    with pytest.raises(BoughError, match=r"Ray Train could not run the learners: no room"):
        result(0, {}, BoughError("no room\nat all"))


@pytest.mark.parametrize(
    ("gpus", "count", "each"), [([], 2, 0.0), ([1], 2, 0.5), ([4, 4], 8, 1.0), ([2], 3, 0.5), ([1], 1, 1.0)]
)
def test_learners_get_a_gpu_each_or_equal_parts(gpus: list[int], count: int, each: float):
    nodes = [{"CPU": 8.0}, *({"CPU": 8.0, "GPU": float(number)} for number in gpus)]
    assert plan_learners(count, nodes).gpus == each


def test_learners_that_share_a_gpu_are_told_that_it_is_slower():
    plan = plan_learners(2, [{"CPU": 4.0, "GPU": 1.0}])
    assert str(plan).startswith("2 learners, 2 on each GPU: they communicate through gloo, because NCCL refuses")
    assert str(plan_learners(2, [{"CPU": 3.0}])) == "2 learners with 1 CPU each"
    assert str(plan_learners(2, [{"CPU": 4.0, "GPU": 2.0}])) == "2 learners with 1 GPU each"


def test_learners_that_leave_no_cpu_for_a_worker_are_refused():
    with pytest.raises(InputError, match=r"--learners 2 needs 3 CPUs, .*; the cluster has 2: lower --learners"):
        plan_learners(2, [{"CPU": 1.0}, {"CPU": 1.0}])


def test_learners_that_never_start_are_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("bough.rollouts.ray_learners.PATIENCE_S", 0)
    ended = threading.Event()
    train = threading.Thread(target=ended.wait)
    relay = SimpleNamespace(read=SimpleNamespace(remote=lambda: ([], [])), stop=SimpleNamespace(remote=list))
    with pytest.raises(ClusterLostError, match=r"no learner could start in 0 s; `ray status` shows what is in use"):
        followed(SimpleNamespace(get=lambda answer: answer), relay, train, 0, Interrupts())  # type: ignore[arg-type]
    ended.set()


def test_a_run_folder_that_only_the_driver_sees_is_refused(tmp_path: Path):
    (tmp_path / "token").touch()
    check_disk(tmp_path / "token")
    with pytest.raises(InputError, match=r"is not the same folder on .*on a disk that all of them see"):
        check_disk(tmp_path / "other" / "token")


def test_an_interrupt_ends_the_learners(capsys: pytest.CaptureFixture[str]):
    killed = threading.Event()

    class Train(threading.Thread):
        failure = None

        def run(self) -> None:
            assert killed.wait(60)

    class Ray:
        def get(self, answer: Any) -> Any:
            if isinstance(answer, KeyboardInterrupt):
                raise answer
            return answer

        def kill(self, actor: str) -> None:
            assert actor == "a learner"
            killed.set()

    answers = iter([([("stdout", "played\n")], ["a learner"]), KeyboardInterrupt(), ([], ["a learner"])])
    relay = SimpleNamespace(read=SimpleNamespace(remote=lambda: next(answers)), stop=SimpleNamespace(remote=list))
    train = Train()
    with pytest.raises(KeyboardInterrupt):
        followed(Ray(), relay, train, 60, Interrupts())
    assert not train.is_alive()
    assert capsys.readouterr().out == "played\n"


def test_an_interrupt_asks_the_learners_to_stop_and_waits_for_them():
    """The signal reaches the driver; a learner hears of it from the relay and stops after its step."""
    relay, begun = Relay(), threading.Event()
    relay.join("a learner")
    ray = SimpleNamespace(get=lambda answer: answer, kill=lambda _: pytest.fail("nothing is killed"))
    names = ("read", "stop", "stopping")
    remote = SimpleNamespace(**{name: SimpleNamespace(remote=getattr(relay, name)) for name in names})

    class Train(threading.Thread):
        failure = None
        stopped = False

        def run(self) -> None:
            stopping = threading.Event()
            with asking(ray, remote), Interrupts() as interrupts, interrupts.calling(stopping.set):
                begun.set()
                self.stopped = stopping.wait(60)

    def interrupt() -> None:
        begun.wait(60)
        os.kill(os.getpid(), signal.SIGINT)

    train, interrupts = Train(), Interrupts()
    threading.Thread(target=interrupt).start()
    assert followed(ray, remote, train, 60, interrupts) is None  # type: ignore[arg-type]
    assert train.stopped and interrupts.requested


def test_an_interrupt_before_a_learner_has_begun_ends_the_run():
    ended = threading.Event()

    class Ray:
        asked = 0

        def get(self, answer: Any) -> Any:
            self.asked += 1
            os.kill(os.getpid(), signal.SIGINT) if self.asked == 1 else ended.set()
            return answer

    relay = SimpleNamespace(read=SimpleNamespace(remote=lambda: ([], [])), stop=SimpleNamespace(remote=list))
    with pytest.raises(KeyboardInterrupt):
        followed(Ray(), relay, threading.Thread(target=ended.wait), 60, Interrupts())  # type: ignore[arg-type]


def test_whole_lines_are_sent_and_the_last_one_at_the_end():
    relay = Relay()
    stream = RelayStream("stderr", relay.write)
    print("step", 1, file=stream)
    stream.write("step 2\nste")
    assert relay.read()[0] == [("stderr", "step 1\n"), ("stderr", "step 2\n")]
    stream.flush()
    assert relay.read()[0] == [("stderr", "ste")] and relay.read()[0] == []

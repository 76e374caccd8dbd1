"""Code in the main thread is interrupted when its time is up, wherever it waits."""

import signal
import socket
import threading
import time
from collections.abc import Callable

import pytest

from bough.environments.rubric import SIGNAL, TimeUpError, Watchdog


def spin() -> None:
    while True:
        pass


def sleep() -> None:
    time.sleep(60)


def receive() -> None:
    ours, _theirs = socket.socketpair()
    ours.recv(1)


def lock() -> None:
    held = threading.Lock()
    with held:
        held.acquire()


def stubborn() -> None:
    try:
        time.sleep(60)
    except BaseException:
        time.sleep(60)


@pytest.mark.parametrize("hang", [spin, sleep, receive, lock, stubborn])
def test_code_that_hangs_is_interrupted(hang: Callable[[], None]):
    def watched() -> None:
        with Watchdog(0.2) as watchdog:
            watchdog.restart()
            hang()

    begin = time.monotonic()
    with pytest.raises(TimeUpError):
        watched()
    assert 0.2 <= time.monotonic() - begin < 30


def test_only_the_time_since_the_last_start_counts_and_none_while_it_rests():
    with Watchdog(0.8) as watchdog:
        for _ in range(5):
            watchdog.restart()
            time.sleep(0.2)
        watchdog.rest()
        time.sleep(0.9)


def test_the_signal_is_as_before_and_no_thread_is_left():
    before, threads = signal.getsignal(SIGNAL), threading.active_count()
    with Watchdog(60.0) as watchdog:
        watchdog.restart()
    assert signal.getsignal(SIGNAL) is before and threading.active_count() == threads


def test_in_another_thread_it_watches_nothing():
    done = []

    def work() -> None:
        with Watchdog(0.05) as watchdog:
            watchdog.restart()
            time.sleep(0.2)
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]

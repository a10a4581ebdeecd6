import os
import threading

from ratekit.core.poller import Poller


def test_function_is_called_at_once_and_again_when_it_is_woken():
    calls = [threading.Event() for _ in range(3)]
    made = iter(calls)
    poller = Poller(lambda: next(made).set(), 60, "test")
    try:
        assert calls[0].wait(5)
        poller.wake()
        assert calls[1].wait(5)
        poller.run_now()
        assert calls[2].is_set()
    finally:
        poller.close()


def test_interval_may_be_asked_for_each_time():
    asked = []
    enough = threading.Event()

    def interval():
        asked.append(1)
        if len(asked) == 3:
            enough.set()
        return 0.001

    poller = Poller(lambda: None, interval, "test")
    assert enough.wait(5)
    poller.close()


def test_two_threads_never_call_the_function_at_the_same_time():
    inside, worst = [], []

    def function():
        inside.append(1)
        worst.append(len(inside))
        inside.pop()

    poller = Poller(function, 0.0001, "test")
    for _ in range(200):
        poller.run_now()
    poller.close()
    assert max(worst) == 1


def test_closed_poller_calls_no_more_and_is_not_revived():
    calls = []
    called = threading.Event()

    def function():
        calls.append(1)
        called.set()

    poller = Poller(function, 60, "test")
    assert called.wait(5)
    poller.close()
    poller.revive()
    poller.wake()
    assert calls == [1]


def test_fork_has_a_thread_again_when_it_is_revived():
    read, write = os.pipe()
    poller = Poller(lambda: os.write(write, b"%d\n" % os.getpid()), 60, "test")
    assert int(os.read(read, 20)) == os.getpid()
    child = os.fork()
    if child == 0:
        poller.revive()
        threading.Event().wait(10)
        os._exit(0)
    try:
        assert int(os.read(read, 20)) == child
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
        poller.close()
        os.close(read)
        os.close(write)

import os
import signal
import threading

import pytest

from sightline.training.signals import SignalHandler


def test_first_signal_is_stored_and_second_interrupt_raises():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with SignalHandler() as signals:
        assert signals.received == 0
        os.kill(os.getpid(), signal.SIGTERM)
        assert signals.received == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_handlers_are_installed_in_the_main_thread_only():
    before, handlers = signal.getsignal(signal.SIGINT), []

    def run():
        with SignalHandler():
            handlers.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]

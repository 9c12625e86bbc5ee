"""Signals end the demo once, and never its clean-up."""

import signal

import pytest

from towpath.deploy.local.own_stack import interrupted_once


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_interrupts(number):
    """
    Ctrl-C, a closed terminal and kill all mean the same.
    """
    with pytest.raises(KeyboardInterrupt), interrupted_once():
        signal.raise_signal(number)


def test_a_second_signal_does_not_hinder_the_clean_up():
    """
    After the first interrupt the clean-up runs to its end, whatever comes.
    """
    done = []

    def work():
        with interrupted_once():
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                signal.raise_signal(signal.SIGTERM)
                done.append("clean")

    with pytest.raises(KeyboardInterrupt):
        work()

    assert done == ["clean"]


def test_the_clean_up_of_a_finished_demo_is_not_interrupted():
    """
    Once interrupts is turned away, not even the first signal interrupts.
    """
    done = []
    with interrupted_once() as interrupts:
        interrupts.disable()
        signal.raise_signal(signal.SIGINT)
        done.append("clean")

    assert done == ["clean"]


def test_afterwards_signals_mean_what_they_meant():
    """
    The handlers that were there before are there again.
    """
    before = signal.getsignal(signal.SIGTERM)
    with interrupted_once():
        pass

    assert signal.getsignal(signal.SIGTERM) == before

"""What all tests share."""

import signal


def pytest_configure() -> None:
    """Have programs that tests start heed signals where this process was started to ignore them, as `nohup` and `&` do.

    A program inherits what is ignored, but not what is handled.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)

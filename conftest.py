"""What all tests share."""

import signal
from pathlib import Path

import pytest

VERL = Path(__file__).parent / "backends" / "verl"


def pytest_configure() -> None:
    """Have programs that tests start heed signals where this process was started to ignore them, as `nohup` and `&` do.

    A program inherits what is ignored, but not what is handled.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Where several processes share the tests: a file's tests stay together, and verl's go one after the other.

    Files have fixtures that are dear to make, and two of verl's runs at once need more memory than there is. Verl's
    begin first, since they take longest.
    """
    if config.getoption("dist", "no") == "no":
        return
    items.sort(key=lambda item: not item.path.is_relative_to(VERL))
    for item in items:
        group = "verl" if item.path.is_relative_to(VERL) else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))

"""The verl environment, for tests that need it."""

import os

import pytest

from lightning_core.errors import UsageError
from lightning_verl import environment


@pytest.fixture(scope="session")
def verl_python():
    """The Python of the verl environment; the test is skipped where none is named."""
    if not os.environ.get(environment.VARIABLE):
        pytest.skip(
            f"`{environment.VARIABLE}` names no verl environment; `make verl-env` makes one"
        )
    try:
        python = environment.find_python(None)
        environment.check(python)
    except UsageError as error:
        pytest.skip(str(error))
    return python

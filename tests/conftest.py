"""One torch thread: results depend on nothing but the code, and two cores are two cores."""

import pytest
import torch

pytest_plugins = ["fakes_runs"]


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)

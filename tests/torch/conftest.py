"""One thread of torch: products this small would wait for each other."""

import pytest


@pytest.fixture(autouse=True)
def one_thread():
    """Run torch in one thread."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

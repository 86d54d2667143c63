import torch

from onyx.accumulation.lazy_scalar import read, settle


def test_on_the_cpu_it_becomes_a_python_number() -> None:
    assert settle(3) == 3.0
    value = settle(torch.tensor(2.5, requires_grad=True) * 1)
    assert type(value) is float
    assert value == 2.5


def test_on_other_devices_it_stays_a_tensor_without_its_graph() -> None:
    tensor = torch.ones((), device="meta", requires_grad=True) * 2
    value = settle(tensor)
    assert isinstance(value, torch.Tensor)
    assert not value.requires_grad


def test_reading_gives_a_python_number() -> None:
    assert type(read(torch.tensor(1))) is float

import re

import pytest
from starlette.requests import Request

from onyx.api.request_id import request_id_of


def request(given: bytes | None) -> Request:
    return Request({"type": "http", "headers": [] if given is None else [(b"x-request-id", given)]})


@pytest.mark.parametrize("given", [b"a", b"req_1", b"0af7651916cd43dd.8448-eb211c80319c", b"x" * 64])
def test_a_harmless_name_is_kept(given: bytes) -> None:
    assert request_id_of(request(given)) == given.decode()


@pytest.mark.parametrize("given", [None, b"", b"x" * 65, b"a b", b"a\nb", b"a\n", b"<b>", b"caf\xe9", b'"'])
def test_anything_else_gets_a_name_of_ours_and_each_its_own(given: bytes | None) -> None:
    names = {request_id_of(request(given)) for _ in range(10)}
    assert len(names) == 10
    assert all(re.fullmatch("req_[0-9a-f]{24}", name) for name in names)

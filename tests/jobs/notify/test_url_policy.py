import pytest

from onyx.jobs.notify.url_policy import AddressError, Target, addresses_of, is_public, parse


def test_a_url_is_taken_apart() -> None:
    target = parse("https://Example.com/hook?a=b", allow_private=False)
    assert target == Target("https", "example.com", 443, "/hook?a=b")
    assert target.authority == "example.com"
    assert parse("http://[::1]:8080", allow_private=True).authority == "[::1]:8080"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/",
        "ftp://example.com/",
        "https:///path",
        "https://user:password@example.com/",
        "https://example.com/#part",
        "https://example.com:99999/",
        "https://exämple.com/",
        "https://example.com/a b",
        "https://example.com/\r\nHost: other",
        "https://" + "x" * 3000,
        "https://[::1",
    ],
)
def test_malformed_and_unencrypted_urls_are_refused(url: str) -> None:
    with pytest.raises(AddressError):
        parse(url, allow_private=False)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),  # noqa: S104
        *("100.64.0.1", "224.0.0.1", "255.255.255.255", "198.18.0.1", "240.0.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::", "2002:a00:1::", "localhost", ""),
    ],
)
def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1:248::1", "::ffff:8.8.8.8"])
def test_public_addresses_are_allowed(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]", "2130706433", "0x7f.1", "no.such.host.invalid"])
def test_names_that_resolve_to_private_addresses_are_refused(host: str) -> None:
    with pytest.raises(AddressError):
        addresses_of(parse(f"https://{host}/", allow_private=False), allow_private=False)


def test_an_operator_may_allow_private_addresses() -> None:
    assert addresses_of(parse("http://127.0.0.1/", allow_private=True), allow_private=True) == ["127.0.0.1"]

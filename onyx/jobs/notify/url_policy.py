"""Which URLs of users Onyx may send to (SSRF check): public hosts only, unless an operator allows private ones."""

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_CHARACTERS = 2048
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses that a gateway turns into the IPv4 address in their last bytes."""


class AddressError(ValueError):
    """The URL is refused. The message says why."""


@dataclass(frozen=True)
class Target:
    """A URL taken apart."""

    scheme: str
    host: str
    port: int
    path: str
    """With its query."""

    @property
    def authority(self) -> str:
        """As the Host header names it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"


_PORTS = {"https": 443, "http": 80}


def parse(url: str, *, allow_private: bool) -> Target:
    """The URL's parts; AddressError if it is malformed, or not https and `allow_private` is false."""
    if len(url) > MAX_CHARACTERS or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressError(f"the URL must be at most {MAX_CHARACTERS} printable ASCII characters without spaces")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise AddressError("the URL cannot be read") from None
    allowed = ("https", "http") if allow_private else ("https",)
    if parts.scheme not in allowed or not parts.hostname:
        raise AddressError(f"the URL must begin with {' or '.join(f'{scheme}://' for scheme in allowed)} and a host")
    if parts.username is not None or parts.password is not None or parts.fragment:
        raise AddressError("the URL must have no user name, password or fragment")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(parts.scheme, parts.hostname, _PORTS[parts.scheme] if port is None else port, path)


def addresses_of(target: Target, *, allow_private: bool) -> list[str]:
    """The addresses that the host's name resolves to; AddressError unless all of them are public. May block."""
    try:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressError(f"there is no host {target.host[:200]!r} that the URL could mean") from None
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    if not allow_private and not all(is_public(address) for address in addresses):
        raise AddressError(f"{target.host[:200]!r} is not on the public network: webhooks are not sent into this one")
    return addresses


def is_public(text: str) -> bool:
    """Whether an address is on the public network, and does not lead to this host or its network."""
    try:
        address = _inner(ipaddress.ip_address(text.partition("%")[0]))
    except ValueError:
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _inner(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 address contains, if it contains one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(address.packed[-4:])
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address

"""No network, no sockets to anybody, but a connected pair within the process."""

from __future__ import annotations

import os
import socket

import pytest


def test_every_kind_of_socket_is_refused(box):
    result = box.run(
        """
import socket
kinds = {
    "tcp": (socket.AF_INET, socket.SOCK_STREAM), "udp": (socket.AF_INET, socket.SOCK_DGRAM),
    "tcp6": (socket.AF_INET6, socket.SOCK_STREAM), "raw": (socket.AF_INET, socket.SOCK_RAW),
    "unix": (socket.AF_UNIX, socket.SOCK_STREAM), "unix datagram": (socket.AF_UNIX, socket.SOCK_DGRAM),
    "netlink": (socket.AF_NETLINK, socket.SOCK_RAW), "packet": (socket.AF_PACKET, socket.SOCK_RAW),
    "vsock": (socket.AF_VSOCK, socket.SOCK_STREAM), "alg": (socket.AF_ALG, socket.SOCK_SEQPACKET),
}
tell(**{name: attempt(socket.socket, *kind) for name, kind in kinds.items()})
"""
    ).told
    assert set(result.values()) == {"EPERM"}, result


def test_servers_of_this_machine_are_out_of_reach(box):
    """On loopback and on an abstract unix socket, both really listening."""
    name = f"ai-trains-ai-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(f"\0{name}")
        unix.listen()
        with socket.create_connection(tcp.getsockname(), timeout=5):
            accepted, _ = tcp.accept()
            accepted.close()
        result = box.run(
            """
import socket
def connect(family, address):
    with socket.socket(family) as connection:
        connection.settimeout(1)
        connection.connect(address)
tell(
    tcp=attempt(connect, socket.AF_INET, ("127.0.0.1", facts["port"])),
    abstract=attempt(connect, socket.AF_UNIX, "\\0" + facts["name"]),
    name=attempt(socket.getaddrinfo, "localhost", 80),
)
""",
            facts={"port": tcp.getsockname()[1], "name": name},
        ).told
        tcp.settimeout(0)
        with pytest.raises(BlockingIOError):
            tcp.accept()
        unix.settimeout(0)
        with pytest.raises(BlockingIOError):
            unix.accept()
    assert {result["tcp"], result["abstract"]} == {"EPERM"}, result


def test_a_pair_of_sockets_reaches_nobody_else(box):
    """asyncio needs a stream pair. A datagram pair could send to any address without a connection."""
    result = box.run(
        """
import socket
left, right = socket.socketpair()
left.send(b"x")
received = right.recv(1)
tell(stream=received.decode(), datagram=attempt(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM),
     sequence=attempt(socket.socketpair, socket.AF_UNIX, socket.SOCK_SEQPACKET),
     elsewhere=attempt(left.connect, "\\0anything"), bind=attempt(left.bind, "\\0mine"),
     listen=attempt(left.listen))
"""
    ).told
    assert result.pop("stream") == "x"
    assert set(result.values()) == {"EPERM"}, result

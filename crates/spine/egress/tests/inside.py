"""What runs in a network namespace of its own in `namespace.rs`.

Opens a listener on the namespace's loopback, hands it out over the socket that
is its standard input, and then tries to reach a server outside: through the
listener, and past it. Prints one line of JSON with what came of it.

usage: inside.py PORT-OF-THE-SERVER
"""

import fcntl
import json
import socket
import struct
import subprocess
import sys

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1


def raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        reply = fcntl.ioctl(any_socket, SIOCGIFFLAGS, request)
        flags = struct.unpack("16sH14x", reply)[1] | IFF_UP
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))


def curl(*arguments):
    command = ["curl", "-sS", "--max-time", "20", *arguments]
    return subprocess.run(command, capture_output=True, text=True).stdout


def past(port):
    """Whether a connection that knows no proxy gets anywhere."""
    reached = []
    for address in ("127.0.0.1", "169.254.169.254", "8.8.8.8"):
        try:
            socket.create_connection((address, port), timeout=5).close()
            reached.append(address)
        except OSError:
            pass
    return reached


def main():
    port = int(sys.argv[1])
    raise_loopback()
    listener = socket.create_server(("127.0.0.1", 0))
    outside = socket.socket(fileno=0)
    socket.send_fds(outside, [b"listener"], [listener.fileno()])
    proxy = f"http://127.0.0.1:{listener.getsockname()[1]}"
    listener.close()
    print(json.dumps({
        "allowed": curl("--proxy", proxy, f"http://registry.test:{port}/"),
        "denied": curl("--proxy", proxy, f"http://elsewhere.test:{port}/"),
        "past": past(port),
    }), flush=True)


main()

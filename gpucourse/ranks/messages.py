"""Messages of several frames over a stream socket: a count, each frame's length, the frames."""

import socket
import struct

LENGTH = struct.Struct("!Q")
SMALL = 32768  # bytes that a socket takes at once


def send(sock: socket.socket, frames: list) -> None:
    """Send frames (bytes-like). Raises OSError when the other end is gone."""
    views = [memoryview(frame).cast("B") for frame in frames]
    head = b"".join(map(LENGTH.pack, (len(views), *(view.nbytes for view in views))))
    if len(head) + sum(view.nbytes for view in views) <= SMALL:  # whole, or the other end might wait for the rest
        sock.sendall(b"".join([head, *views]))
        return
    sock.sendall(head)
    for view in views:
        sock.sendall(view)


def receive(sock: socket.socket) -> list[bytearray]:
    """The frames of the next message. Raises EOFError when the other end is gone, also in the middle."""
    (count,) = LENGTH.unpack(exactly(sock, LENGTH.size))
    sizes = [LENGTH.unpack(exactly(sock, LENGTH.size))[0] for _ in range(count)]
    return [exactly(sock, size) for size in sizes]


def exactly(sock: socket.socket, size: int) -> bytearray:
    buffer = bytearray(size)
    view, done = memoryview(buffer), 0
    while done < size:
        try:
            got = sock.recv_into(view[done:])
        except ConnectionResetError:
            got = 0
        if not got:
            raise EOFError("the other end of the socket is gone")
        done += got
    return buffer

"""papermill, whose client looks again every two seconds for a message that it may have missed.

    python -m towerlab.run_chapter IN.ipynb OUT.ipynb -p model path/to/model  # as papermill

A client sleeps until its socket's file descriptor says that something came. Twice in some hundred
chapters that was lost: the kernel had answered, the answer lay in the socket, and both waited for
ever. A poll that ends looks into the socket itself.
"""

from __future__ import annotations

from queue import Empty
from time import monotonic
from typing import Any

from jupyter_client.channels import AsyncZMQSocketChannel

SECONDS = 2.0


async def get_msg(channel: AsyncZMQSocketChannel, timeout: float | None = None) -> dict[str, Any]:
    """The next message of a channel. Raises Empty after so many seconds without one; None waits."""
    end = None if timeout is None else monotonic() + timeout
    while True:
        left = SECONDS if end is None else min(SECONDS, max(0.0, end - monotonic()))
        if await channel.socket.poll(int(1000 * left)):
            return await channel._recv()
        if end is not None and monotonic() >= end:
            raise Empty


if __name__ == "__main__":
    from papermill.cli import papermill

    AsyncZMQSocketChannel.get_msg = get_msg  # type: ignore[assignment, method-assign]
    papermill()

"""A client of a kernel whose wake-up is lost finds the message all the same."""

import asyncio
from queue import Empty

import pytest
import zmq.asyncio
from jupyter_client.channels import AsyncZMQSocketChannel
from jupyter_client.session import Session
from towerlab import run_chapter


def test_a_message_whose_wake_up_was_lost_is_found(monkeypatch):
    monkeypatch.setattr(run_chapter, "SECONDS", 0.3)

    async def answer():
        context, session = zmq.asyncio.Context(), Session(key=b"")
        client = context.socket(zmq.DEALER)
        kernel = zmq.Context.shadow(context.underlying).socket(zmq.ROUTER)
        try:
            client.connect(f"tcp://127.0.0.1:{kernel.bind_to_random_port('tcp://127.0.0.1')}")
            await client.send(b"hello")
            name, _ = kernel.recv_multipart()
            channel = AsyncZMQSocketChannel(client, session)
            with pytest.raises(Empty):
                await run_chapter.get_msg(channel, 0.1)
            waiting = asyncio.ensure_future(run_chapter.get_msg(channel))
            await asyncio.sleep(0.1)
            session.send(kernel, "execute_reply", ident=name)
            raw = zmq.Socket.shadow(client.underlying)
            while not raw.get(zmq.EVENTS) & zmq.POLLIN:  # which takes the wake-up away
                pass
            return await asyncio.wait_for(waiting, 20)
        finally:
            kernel.close(linger=0)
            client.close(linger=0)

    assert asyncio.run(answer())["msg_type"] == "execute_reply"

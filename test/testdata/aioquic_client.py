"""One HTTP/3 connection that makes a request every 100 ms until stopped by a
closed standard input, then prints how many were answered. Any error ends it
with a non-zero code."""

import asyncio
import ssl
import sys

from aioquic.asyncio.client import connect
from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.waiting = {}
        self.status = {}

    def quic_event_received(self, event):
        if isinstance(event, ConnectionTerminated):
            for waiter in self.waiting.values():
                if not waiter.done():
                    waiter.set_exception(ConnectionError(repr(event)))
        for h3 in self.http.handle_event(event):
            if isinstance(h3, HeadersReceived):
                self.status[h3.stream_id] = dict(h3.headers).get(b":status")
            if isinstance(h3, (HeadersReceived, DataReceived)) and h3.stream_ended:
                self.waiting[h3.stream_id].set_result(self.status[h3.stream_id])

    async def get(self, authority, path):
        stream = self._quic.get_next_available_stream_id()
        waiter = self._loop.create_future()
        self.waiting[stream] = waiter
        self.http.send_headers(
            stream,
            [
                (b":method", b"GET"),
                (b":scheme", b"https"),
                (b":authority", authority.encode()),
                (b":path", path.encode()),
            ],
            end_stream=True,
        )
        self.transmit()
        return await asyncio.wait_for(waiter, 10)


async def main(host, port):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=H3_ALPN)
    configuration.verify_mode = ssl.CERT_NONE
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    async with connect(host, port, configuration=configuration, create_protocol=Client) as client:
        count = 0
        while not reader.at_eof():
            status = await client.get(f"{host}:{port}", "/whoami")
            if status != b"200":
                raise RuntimeError(f"status {status}")
            count += 1
            if count == 1:
                print("connected", flush=True)
            try:
                await asyncio.wait_for(reader.read(1), 0.1)
            except asyncio.TimeoutError:
                pass
    print(count)


asyncio.run(main(sys.argv[1], int(sys.argv[2])))

"""A follower of the catalog and a native service, written from docs/protocol.md alone.

It uses Python's standard library only: NATS is a text protocol over TCP. A test runs this file against the
real programs.

    from_the_page.py HOST:PORT follow    prints a JSON line for each change of its copy of the catalog
    from_the_page.py HOST:PORT serve     runs the extension "clockpy" with the tools "now" and "echo"

A follower reads commands from its standard input: "dump" prints the copy, "skip" loses the next event, "reconnect"
closes the connection, and "idle" makes the last event and the last snapshot a minute older.
"""

import asyncio
import collections
import datetime
import hashlib
import json
import random
import secrets
import signal
import socket
import sys
import threading
import time

Message = collections.namedtuple("Message", "subject reply headers status body")


def log(*words):
    print(*words, file=sys.stderr, flush=True)


class Nats:
    """A minimal NATS client. It connects again, and subscribes again, for as long as its run lasts."""

    def __init__(self, address, on_connect):
        self.host, self.port = address.rsplit(":", 1)
        self.on_connect = on_connect  # called after each connect, when the subscriptions are made
        self.subscriptions = {}  # sid: (subject, queue, handler)
        self.sids = 0
        self.up = asyncio.Event()
        self.writer = None
        self.pongs = collections.deque()  # one future for each PING
        self.max_payload = 1 << 20

    async def run(self):
        while True:
            try:
                await self.connection()
            except (OSError, EOFError, asyncio.TimeoutError) as err:
                log("disconnected:", repr(err))
            self.up.clear()
            while self.pongs:
                self.pongs.popleft().set_exception(ConnectionError("disconnected"))
            if self.writer:
                self.writer.close()
            self.writer = None
            await asyncio.sleep(random.uniform(0.1, 0.5))

    async def connection(self):
        reader, self.writer = await asyncio.wait_for(asyncio.open_connection(self.host, int(self.port)), 5)
        info = await asyncio.wait_for(reader.readline(), 5)
        self.max_payload = json.loads(info.removeprefix(b"INFO "))["max_payload"]
        self.write('CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n')
        for sid, (subject, queue, _) in self.subscriptions.items():
            self.write(f"SUB {subject} {queue} {sid}\r\n")
        self.up.set()
        self.on_connect()
        silent = 0
        while True:
            try:
                line = await asyncio.wait_for(reader.readline(), 20)
            except asyncio.TimeoutError:
                silent += 1
                if silent > 2:
                    raise  # two PINGs without an answer: the connection is dead
                self.ping()
                continue
            silent = 0
            if not line:
                raise EOFError("the server closed the connection")
            await self.receive(reader, line.rstrip().split(b" "))

    async def receive(self, reader, words):
        match words:
            case [b"PING"]:
                self.write("PONG\r\n")
            case [b"PONG"]:
                pong = self.pongs.popleft()
                if not pong.done():
                    pong.set_result(None)
            case [b"MSG" | b"HMSG" as kind, subject, sid, *reply, size]:
                body = (await reader.readexactly(int(size) + 2))[:-2]
                head = b""
                if kind == b"HMSG":
                    length = int(reply.pop())
                    head, body = body[:length], body[length:]
                if int(sid) in self.subscriptions:
                    reply = reply[0].decode(errors="replace") if reply else ""
                    subject = subject.decode(errors="replace")
                    self.subscriptions[int(sid)][2](Message(subject, reply, *parse_headers(head), body))
            case [b"-ERR", *text]:
                log("server:", b" ".join(text).decode())

    def write(self, text, body=b""):
        if self.writer:
            self.writer.write(text.encode() + body)

    def subscribe(self, subject, handler, queue=""):
        self.sids += 1
        self.subscriptions[self.sids] = (subject, queue, handler)
        if self.up.is_set():
            self.write(f"SUB {subject} {queue} {self.sids}\r\n")
        return self.sids

    def unsubscribe(self, sid, forget=True):
        """Stops the delivery. Without forget, requests that are on their way still reach the handler."""
        self.write(f"UNSUB {sid}\r\n")
        if forget:
            del self.subscriptions[sid]

    def publish(self, subject, body, reply="", headers=()):
        if headers:
            head = b"NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers).encode() + b"\r\n"
            self.write(f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}\r\n", head + body + b"\r\n")
        else:
            self.write(f"PUB {subject} {reply} {len(body)}\r\n", body + b"\r\n")

    def ping(self):
        if not self.up.is_set():
            raise ConnectionError("not connected")
        pong = asyncio.get_running_loop().create_future()
        pong.add_done_callback(lambda done: done.cancelled() or done.exception())  # nobody may be waiting
        self.pongs.append(pong)
        self.write("PING\r\n")
        return pong

    async def flush(self):
        """Returns when the server has processed what was sent and its messages until then have been handled."""
        await asyncio.wait_for(asyncio.shield(self.ping()), 10)


def parse_headers(head):
    """Returns the headers and the status of the first line, such as "503", or an empty one."""
    first, *lines = head.decode(errors="replace").split("\r\n")
    headers = {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
    return headers, first.removeprefix("NATS/1.0").strip()[:3]


Change = collections.namedtuple("Change", "key sequence time value")  # a deleted key has the value None


def parse_change(message):
    """Reads an event, or a message of a snapshot. It raises an error if the message is not of the stream."""
    bucket, headers = "$KV.ext_catalog.", message.headers
    key = headers["Nats-Subject"].removeprefix(bucket)
    if headers["Nats-Subject"] != bucket + key:
        raise ValueError(f"{headers['Nats-Subject']} is not of the bucket")
    stored = headers["Nats-Time-Stamp"].removesuffix("Z").split(".")  # as lists, 0Z is before 0.5Z
    value = None
    if "KV-Operation" not in headers and "Nats-Marker-Reason" not in headers:
        try:
            value = json.loads(message.body)
        except ValueError as err:
            log(f"{key} cannot be read:", err)
    return Change(key, int(headers["Nats-Sequence"]), stored, value)


def apply(copy, change):
    if change.key.startswith(("spec.", "state.", "skill.", "host.")):
        copy.pop(change.key, None)
        if change.value is not None:
            copy[change.key] = change.value


class Follower:
    """Follows the catalog, as the section "Following the catalog" describes it."""

    def __init__(self, address):
        self.nats = Nats(address, self.connected)
        self.nats.subscribe("ext.registry.catalog.>", self.event)
        self.copy, self.last, self.last_time = {}, 0, []
        self.behind = True  # a snapshot is due
        self.wake = asyncio.Event()
        self.queue = collections.deque(maxlen=100_000)  # what it drops is found as a gap
        self.connects = self.snapshots = 0
        self.event_at = self.snapshot_at = time.monotonic()
        self.skip = False
        self.printed = None

    async def run(self):
        threading.Thread(target=self.commands, args=[asyncio.get_running_loop()], daemon=True).start()
        connection = asyncio.create_task(self.nats.run())
        while not connection.done():
            due = min(self.snapshot_at + 60, max(self.event_at, self.snapshot_at) + 30)
            try:
                await asyncio.wait_for(self.wake.wait(), 0 if self.behind else max(due - time.monotonic(), 0.01))
            except asyncio.TimeoutError:
                self.behind = self.behind or time.monotonic() >= due
            self.wake.clear()
            if self.behind:
                await self.catch_up()
        await connection

    async def catch_up(self):
        wait = 0.1
        while self.behind:
            try:
                await self.nats.up.wait()
                await self.nats.flush()
                connects = self.connects
                snapshot = await self.snapshot()
            except (OSError, KeyError, ValueError, asyncio.TimeoutError) as err:
                log("no snapshot:", repr(err))
                await asyncio.sleep(wait)
                wait = min(2 * wait, 5)
                continue
            if connects == self.connects:
                self.replace(*snapshot)

    def connected(self):
        self.connects += 1
        self.fall_behind()

    def fall_behind(self):
        self.behind = True
        self.wake.set()

    async def snapshot(self):
        copy, last, last_time, more = {}, 0, [], True
        self.queue.clear()
        while more:
            more = False
            async for message in self.page(last + 1):
                if message.status == "204":
                    more = message.headers["Nats-Num-Pending"] != "0"
                elif not message.status:
                    change = parse_change(message)
                    apply(copy, change)
                    last, last_time = change.sequence, change.time
                elif message.status != "404":
                    raise OSError(f"the server answered with status {message.status}")
        return copy, last, last_time

    async def page(self, sequence):
        """Yields the messages of one page, up to the one with a status, which ends it."""
        messages = asyncio.Queue()
        inbox = "_INBOX." + secrets.token_hex(11)
        sid = self.nats.subscribe(inbox, messages.put_nowait)
        try:
            request = {"next_by_subj": "$KV.ext_catalog.>", "seq": sequence, "batch": 1000, "max_bytes": 2097152}
            self.nats.publish("$JS.API.DIRECT.GET.KV_ext_catalog", json.dumps(request).encode(), inbox)
            status = ""
            while not status:
                message = await asyncio.wait_for(messages.get(), 1.5)
                status = message.status
                yield message
        finally:
            self.nats.unsubscribe(sid)

    def replace(self, *snapshot):
        self.copy, self.last, self.last_time = snapshot
        self.snapshot_at = time.monotonic()
        self.snapshots += 1
        self.behind = False
        for change in list(self.queue):
            self.follow(change)
        self.print()

    def event(self, message):
        try:
            change = parse_change(message)
            if message.subject != "ext.registry.catalog." + change.key:
                raise ValueError(f"it is of the key {change.key}")
        except (KeyError, ValueError) as err:
            log("ignored a message on", message.subject, repr(err))
            return
        self.event_at = time.monotonic()
        if self.skip:
            self.skip = False
            return
        self.follow(change)
        self.print()

    def follow(self, change):
        if self.behind:
            self.queue.append(change)
        elif change.sequence == self.last + 1:
            apply(self.copy, change)
            self.last, self.last_time = change.sequence, change.time
        elif change.sequence > self.last or change.time > self.last_time:  # a gap, or another bucket
            self.fall_behind()

    def print(self, always=False):
        if always or not self.behind and self.copy != self.printed:
            self.printed = dict(self.copy)
            print(json.dumps({
                "dump": always, "behind": self.behind, "fresh": time.monotonic() - self.event_at < 10,
                "last": self.last, "snapshots": self.snapshots, "copy": self.copy,
            }), flush=True)

    def commands(self, loop):
        for line in sys.stdin:
            loop.call_soon_threadsafe(self.command, line.strip())

    def command(self, word):
        if word == "dump":
            self.print(always=True)
        elif word == "skip":
            self.skip = True
        elif word == "reconnect" and self.nats.writer:
            self.nats.writer.close()
        elif word == "idle":
            self.event_at, self.snapshot_at = self.event_at - 60, self.snapshot_at - 60
            self.wake.set()


class CallError(Exception):
    """An error of the mesh: it has a kind, and its answer has the headers that mark it."""

    def __init__(self, code, kind, text, **data):
        super().__init__(text)
        self.code, self.data = code, {"kind": kind, "ran": "no", **data}


class Service:
    """The native service clockpy."""

    ID, VERSION = "clockpy", "1.0.0"
    TOOLS = [
        {"name": "now", "description": "The time of this host.", "input_schema": {"type": "object"}},
        {"name": "echo", "description": "Returns its arguments, after wait_ms milliseconds.",
         "input_schema": {"type": "object", "properties": {"wait_ms": {"type": "integer"}}}},
    ]

    def __init__(self, address):
        self.nats = Nats(address, self.announce)
        self.instance = secrets.token_hex(11)
        self.state = "ready"
        self.started = time.monotonic()
        self.calls, self.count, self.errors, self.heartbeats = set(), 0, 0, 0
        handshake = hashlib.sha256(json.dumps(self.handshake()).encode()).hexdigest()
        self.announcement = json.dumps({
            "schema_version": 1, "id": self.ID, "version": self.VERSION, "instance": self.instance, "transport": "nats",
            "host": socket.gethostname(), "dialect": "ext", "features": ["instance"], "handshake_hash": handshake,
        }).encode()

    async def run(self):
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        subject = f"ext.{self.ID}.rpc"
        rpc = [
            self.nats.subscribe(subject, self.request, "q"),
            self.nats.subscribe(f"{subject}.{self.instance}", self.request),
        ]
        requests = self.nats.subscribe("ext.registry.request", lambda message: self.announce())
        connection = asyncio.create_task(self.nats.run())
        beats = asyncio.create_task(self.beat())
        connection.add_done_callback(lambda ended: stop.set())
        await stop.wait()
        if connection.done():
            return connection.result()
        try:
            await self.leave(rpc, requests, beats)
        except (OSError, asyncio.TimeoutError) as err:
            log("stopped while the connection was lost:", repr(err))
        connection.cancel()

    async def leave(self, rpc, requests, beats):
        self.state = "draining"
        self.heartbeat()
        for sid in rpc:
            self.nats.unsubscribe(sid, forget=False)
        await self.nats.flush()
        if self.calls:
            await asyncio.wait(self.calls, timeout=30)
        self.nats.unsubscribe(requests)
        await self.nats.flush()
        beats.cancel()
        notice = {"id": self.ID, "instance": self.instance, "reason": "shutdown"}
        self.nats.publish(f"ext.registry.shutdown.{self.ID}", json.dumps(notice).encode())
        await self.nats.flush()

    def announce(self):
        self.nats.publish(f"ext.registry.announce.{self.ID}", self.announcement)
        self.heartbeat()

    async def beat(self):
        wait = random.uniform(0, 15)
        while True:
            await asyncio.sleep(wait)
            self.heartbeat()
            wait = random.uniform(13.5, 16.5)

    def heartbeat(self):
        self.heartbeats += 1
        body = {
            "id": self.ID, "version": self.VERSION, "instance": self.instance, "state": self.state,
            "seq": self.heartbeats, "ts": now(), "interval_ms": 15000,
            "uptime_secs": int(time.monotonic() - self.started),
            "inflight": len(self.calls), "calls": self.count, "errors": self.errors,
            "announced": hashlib.sha256(self.announcement).hexdigest()[:16],
        }
        self.nats.publish(f"ext.registry.heartbeat.{self.ID}", json.dumps(body).encode())

    def request(self, message):
        if not message.reply.startswith("_INBOX."):
            return
        self.count += 1
        call = asyncio.create_task(self.answer(message))
        self.calls.add(call)
        call.add_done_callback(self.calls.discard)

    async def answer(self, message):
        headers, response = (), {"jsonrpc": "2.0", "id": None}
        try:
            request = parse_request(message.body)
            if not usable(request.get("id")):
                raise CallError(-32600, "invalid_request", "the id is neither a number nor a string of up to 256 bytes")
            response["id"] = request["id"]
            if len(self.calls) > 256:
                raise CallError(-32005, "overloaded", "256 calls are in flight already", limit=256, retry_after_ms=50)
            response["result"] = await self.call(request.get("method"), request.get("params"))
            body = json.dumps(response, allow_nan=False).encode()
            if len(body) > self.nats.max_payload - 1024:
                raise CallError(-32006, "too_large", "the answer does not fit into a message", ran="maybe",
                                size=len(body), limit=self.nats.max_payload - 1024)
        except CallError as err:
            response.pop("result", None)
            response["error"] = {"code": err.code, "message": str(err), "data": err.data}
            headers = [("Nats-Service-Error", err), ("Nats-Service-Error-Code", err.code)]
            body = json.dumps(response).encode()
        except Exception as err:  # an error of the extension itself: no kind, no headers
            response.pop("result", None)
            response["error"] = {"code": -32603, "message": f"clockpy: {err!r}"}
            body = json.dumps(response).encode()
        self.errors += "error" in response
        await self.nats.up.wait()
        self.nats.publish(message.reply, body, headers=headers)

    async def call(self, method, params):
        match method:
            case "initialize":
                return self.handshake()
            case "ping":
                return {}
            case "tools/now":
                return {"now": now()}
            case "tools/echo":
                if isinstance(params, dict):
                    await asyncio.sleep(min(params.get("wait_ms", 0) / 1000, 30))
                return params
            case str():
                raise CallError(-32601, "method_not_found", "clockpy does not have this method")
        raise CallError(-32600, "invalid_request", "the request has no method")

    def handshake(self):
        return {"server_version": self.VERSION, "tools": self.TOOLS, "hooks": []}


def not_json(constant):
    raise ValueError(f"{constant} is not JSON")


def parse_request(body):
    try:
        request = json.loads(body.decode(), parse_constant=not_json)
    except (ValueError, RecursionError) as err:
        raise CallError(-32700, "parse", f"the request is not JSON: {err}") from None
    if not isinstance(request, dict):
        raise CallError(-32600, "invalid_request", "the request is not an object")
    return request


def usable(id):
    if isinstance(id, str):
        return len(id.encode(errors="replace")) <= 256
    return isinstance(id, (int, float)) and not isinstance(id, bool)


def now():
    return datetime.datetime.now(datetime.timezone.utc).isoformat()


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[2] not in ("follow", "serve"):
        sys.exit(__doc__)
    program = Follower if sys.argv[2] == "follow" else Service

    async def main():
        await program(sys.argv[1]).run()

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        pass

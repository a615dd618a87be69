"""Version 1 of extmesh.py: it makes functions the tools of an extension. Each extension has a copy. Standard library only.

    @tool(readOnlyHint=True)
    def greet(name: Annotated[str, "who to greet"]) -> dict:
        "Greets a person by name."
        return {"greeting": f"Hello, {name}!"}

    run()

The function's name, docstring and parameters are those of the tool. Annotated adds a description or members of a JSON
Schema to a parameter. ToolError is an error for the caller. For any other exception the caller receives its type and message,
and standard error, which is the log, the traceback. print() writes to standard error, too.
"""

import inspect
import json
import os
import sys
import threading
import traceback
import types
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Literal, Union, get_args, get_origin, get_type_hints

TOOLS = {}  # by name: the function, the description, the schema, MCP's annotations
TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object", type(None): "null"}
UNIONS = (Union, getattr(types, "UnionType", Union))
MCP_VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"]
MAX_BODY = 64 << 20


class ToolError(Exception):
    """An error for the caller. Codes outside -32768 to -32000 are free for extensions."""

    def __init__(self, message, code=1):
        super().__init__(message)
        self.code = code


def tool(**annotations):
    """Makes a function a tool, with MCP's annotations: readOnlyHint, destructiveHint, idempotentHint, openWorldHint."""

    def add(function):
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
        parameters = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        schema = {
            "type": "object",
            "properties": {p.name: schema_of(hints.get(p.name)) for p in parameters},
            "required": [p.name for p in parameters if p.default is p.empty],
        }
        TOOLS[function.__name__] = function, inspect.getdoc(function) or "", schema, annotations
        return function

    return add


def schema_of(hint):
    if get_origin(hint) is Annotated:
        base, *extras = get_args(hint)
        schema = schema_of(base)
        for extra in extras:
            schema.update(extra if isinstance(extra, dict) else {"description": str(extra)})
        return schema
    if get_origin(hint) in UNIONS:
        return {"anyOf": [schema_of(one) for one in get_args(hint)]}
    if get_origin(hint) is Literal:
        return {"enum": list(get_args(hint))}
    kind = TYPES.get(get_origin(hint) or hint)
    schema = {"type": kind} if kind else {}
    if kind == "array" and get_args(hint):
        schema["items"] = schema_of(get_args(hint)[0])
    return schema


def integer(text):
    return int(text) if len(text) < 4300 else float(text)  # int() refuses more digits


def call(name, arguments):
    """Calls a tool, and returns its result."""
    if name not in TOOLS:
        raise ToolError(f"there is no tool {name!r}", -32601)
    function = TOOLS[name][0]
    try:
        bound = inspect.signature(function).bind(**arguments)
    except TypeError as e:
        raise ToolError(f"{name}: {e}", -32602) from None
    return function(*bound.args, **bound.kwargs)


def tools(schema_key):
    return [{"name": n, "description": d, schema_key: s, "annotations": a} for n, (_, d, s, a) in TOOLS.items()]


def native(method, params, version):
    if method == "initialize":
        return {"server_version": version, "tools": tools("input_schema"), "hooks": []}
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": tools("input_schema")}
    if method == "tools/call":  # of tools named list and call
        return call(params.get("name"), params.get("arguments") or {})
    if method.startswith("tools/"):
        return call(method[len("tools/"):], {k: v for k, v in params.items() if k != "_meta"})
    raise ToolError(f"there is no method {method!r}", -32601)


def mcp(method, params, version):
    if method == "initialize":
        wanted = params.get("protocolVersion")
        return {
            "protocolVersion": wanted if wanted in MCP_VERSIONS else MCP_VERSIONS[-1],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": os.path.basename(os.path.dirname(os.path.abspath(__file__))), "version": version},
        }
    if method == "ping":
        return {}
    if method == "tools/list":
        return {"tools": tools("inputSchema")}
    if method == "tools/call":
        try:
            result = call(params.get("name"), params.get("arguments") or {})
            text = result if isinstance(result, str) else json.dumps(result, allow_nan=False)
        except BaseException as e:  # in MCP, a tool's error is a result; sys.exit() is one, too
            return {"content": [{"type": "text", "text": error_of(e)["message"]}], "isError": True}
        structured = {"structuredContent": result} if isinstance(result, dict) else {}
        return {"content": [{"type": "text", "text": text}], **structured}
    raise ToolError(f"there is no method {method!r}", -32601)


def error_of(e):
    if isinstance(e, ToolError):
        return {"code": e.code, "message": str(e)}
    traceback.print_exception(type(e), e, e.__traceback__)
    return {"code": -32603, "message": f"{type(e).__name__}: {e}"}


def respond(message, handle, version):
    """Returns the response to a request, as JSON; None for a notification."""
    if not isinstance(message, dict) or not isinstance(message.get("method"), str) or "id" not in message:
        return None
    params = message.get("params")
    response = {"jsonrpc": "2.0", "id": message["id"]}
    try:
        result = handle(message["method"], params if isinstance(params, dict) else {}, version)
        return json.dumps({**response, "result": result}, allow_nan=False)  # NaN is not JSON
    except BaseException as e:  # every request gets a response
        return json.dumps({**response, "error": error_of(e)})


def run(version="0.1.0", dialect=native, port=None):
    """Answers requests of a bridge on stdin and stdout, or on HTTP at a port of this machine, until they end."""
    if port is not None:
        return serve_http(lambda message: respond(message, dialect, version), port)
    serve_stdio(lambda message: respond(message, dialect, version))


def serve_stdio(respond):
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a tool and its programs print is not a response
    sys.stdout = sys.stderr
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what a tool's programs read is not a request
    writing = threading.Lock()

    def answer(message):
        line = respond(message)
        if line is not None:
            with writing:
                out.write(line + "\n")
                out.flush()

    with ThreadPoolExecutor(256) as pool:  # as many calls as a bridge sends; leaving the block waits for those that run
        for line in requests:
            try:
                message = json.loads(line, parse_int=integer)
            except ValueError:
                continue  # the empty line before the end of stdin, or not JSON
            if isinstance(message, dict) and message.get("method") == "shutdown":
                break
            pool.submit(answer, message)


def serve_http(respond, port):
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer  # slow to import

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # the headers and the body are written separately

        def do_GET(self):
            self.reply(405, b"")

        def do_POST(self):
            length = self.headers.get("Content-Length", "")
            if self.headers.get("Origin") or not length.isdecimal() or int(length) > MAX_BODY:  # not for web pages
                self.close_connection = True
                return self.reply(403, b"")
            try:
                line = respond(json.loads(self.rfile.read(int(length)), parse_int=integer))
            except ValueError:
                return self.reply(400, b"")
            self.reply(202 if line is None else 200, (line or "").encode())

        def reply(self, status, body):
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    ThreadingHTTPServer.request_queue_size = 256  # a bridge opens a connection for each call under way
    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        print(f"listening on http://127.0.0.1:{server.server_port}/", file=sys.stderr, flush=True)
        server.serve_forever()

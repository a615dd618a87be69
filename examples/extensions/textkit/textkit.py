"""textkit: an extension in Python, standard library only.

It reads JSON-RPC requests from stdin and writes the responses to stdout, one message per line. Logs go to stderr.
Calls run concurrently in threads. It was written from docs/protocol.md.
"""

import json
import re
import sys
import threading
import unicodedata
from concurrent.futures import ThreadPoolExecutor


def wordcount(text):
    return {"lines": len(text.splitlines()), "words": len(text.split()), "characters": len(text)}


def slugify(text):
    # NFKD separates letters from their accents; characters that are not ASCII are then dropped: "Hällo" becomes "hallo".
    # A text in another script has an empty slug.
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return {"slug": re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")}


def reverse(text):
    return {"text": text[::-1]}


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = {
    "wordcount": (wordcount, "Counts the lines, words and characters of a text."),
    "slugify": (slugify, "Makes a URL slug from a text."),
    "reverse": (reverse, "Reverses a text."),
}


class ToolError(Exception):
    """A JSON-RPC error: ToolError(code, message)."""


def handle(method, params):
    if method == "initialize":
        tools = [{"name": n, "description": d, "input_schema": TEXT} for n, (_, d) in TOOLS.items()]
        return {"server_version": "1.0.0", "tools": tools, "hooks": []}
    if method == "ping":
        return {}
    tool = TOOLS.get(method[len("tools/"):]) if method.startswith("tools/") else None
    if tool is None:
        raise ToolError(-32601, f"textkit has no method {method!r}")
    text = params.get("text") if isinstance(params, dict) else None
    if not isinstance(text, str):
        raise ToolError(-32602, 'want {"text": "…"}')
    return tool[0](text)


writing = threading.Lock()  # one response at a time


def encode(request, **answer):
    # ASCII with escapes: no line breaks, no encoding errors.
    return json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}, allow_nan=False)


def call(request):
    try:
        line = encode(request, result=handle(request["method"], request.get("params")))
    except ToolError as e:
        line = encode(request, error={"code": e.args[0], "message": e.args[1]})
    except Exception as e:  # every request gets a response, also one whose result cannot be encoded
        line = encode(request, error={"code": -32603, "message": f"{type(e).__name__}: {e}"})
    with writing:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def integer(digits):
    return int(digits) if len(digits) < 4300 else float(digits)  # int refuses longer ones


def main():
    with ThreadPoolExecutor(256) as pool:  # as many calls as a bridge sends; leaving the block waits for those that run
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line, parse_int=integer)
            except ValueError:
                continue  # the empty line before the end of stdin, or not JSON
            if not isinstance(message, dict) or not isinstance(message.get("method"), str):
                continue
            if message["method"] == "shutdown":
                break
            if "id" in message:  # without an id it is an unknown notification
                pool.submit(call, message)


if __name__ == "__main__":
    main()

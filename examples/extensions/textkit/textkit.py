"""textkit: an extension in Python, standard library only.

One JSON-RPC message a line on stdin and stdout; stderr is for people. Calls run side by side in threads.
Written from docs/protocol.md.
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
    # NFKD takes letters and their accents apart, and what is not ASCII then is dropped: "Hällo" keeps its a. A
    # text in another script has an empty slug; a table of every script would be a package of its own.
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode()
    return {"slug": re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")}


def reverse(text):
    return {"text": text[::-1]}


TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = {
    "wordcount": (wordcount, "Counts the lines, words and characters of a text."),
    "slugify": (slugify, "Makes a slug for a URL of a text."),
    "reverse": (reverse, "Turns a text round, last character first."),
}


class Refused(Exception):
    """An answer with a JSON-RPC error: Refused(code, message)."""


def handle(method, params):
    if method == "initialize":
        tools = [{"name": n, "description": d, "input_schema": TEXT} for n, (_, d) in TOOLS.items()]
        return {"server_version": "1.0.0", "tools": tools, "hooks": []}
    if method == "ping":
        return {}
    tool = TOOLS.get(method[len("tools/"):]) if method.startswith("tools/") else None
    if tool is None:
        raise Refused(-32601, f"textkit has no method {method!r}")
    text = params.get("text") if isinstance(params, dict) else None
    if not isinstance(text, str):
        raise Refused(-32602, 'want {"text": "…"}')
    return tool[0](text)


writing = threading.Lock()  # one line at a time


def answer(message):
    line = json.dumps(message)  # ASCII with escapes: no character can break the line or the encoding
    with writing:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()


def call(request):
    reply = {"jsonrpc": "2.0", "id": request["id"]}
    try:
        reply["result"] = handle(request["method"], request.get("params"))
    except Refused as e:
        reply["error"] = {"code": e.args[0], "message": e.args[1]}
    except Exception as e:  # a fault of ours is an answer too, never silence
        reply["error"] = {"code": -32603, "message": f"{type(e).__name__}: {e}"}
    answer(reply)


def main():
    with ThreadPoolExecutor() as pool:  # leaving it waits for the calls in flight
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
            except ValueError:
                continue  # the empty line that announces the end, or noise
            if not isinstance(message, dict) or not isinstance(message.get("method"), str):
                continue
            if message["method"] == "shutdown":
                break
            if "id" in message:  # without one it is a notification, and none that we know
                pool.submit(call, message)


if __name__ == "__main__":
    main()

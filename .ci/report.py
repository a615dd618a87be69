"""Reads what go test -json wrote: a line for each package, and all that was said by a test that failed. A test that
is skipped here is never run, and so is a failure."""
import collections, json, sys

said, failed, skipped, ended = collections.defaultdict(list), [], [], 0
for line in open(sys.argv[1], errors="replace"):
    try:
        event = json.loads(line)
    except ValueError:
        said[None].append(line)  # the go command's own
        continue
    key = event.get("Package") or event.get("ImportPath"), event.get("Test")
    action = event["Action"]
    if action in ("output", "build-output"):
        said[key].append(event["Output"])
    elif action in ("fail", "build-fail"):
        failed.append(key)
    elif action == "skip" and key[1]:
        skipped.append(key)
    if action in ("pass", "fail") and not key[1]:
        ended += 1
        print(f"{action}  {key[0]}  {event.get('Elapsed', 0):.1f}s")
for key in failed:
    print(f"\n--- {key[0]} {key[1] or ''}")
    print("".join(said[key])[-8000:])
for package, test in skipped:
    print(f"skipped: {package} {test}")
print("".join(said[None]))
sys.exit(1 if failed or skipped or not ended else 0)

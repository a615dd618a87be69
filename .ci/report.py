"""Reads the output of go test -json. Prints one line for each package and the output of every failed test. A skipped test
counts as a failure, because CI is the only place that would have run it."""
import collections, json, sys

output, failed, skipped, ended = collections.defaultdict(list), [], [], 0
for line in open(sys.argv[1], errors="replace"):
    try:
        event = json.loads(line)
    except ValueError:
        output[None].append(line)  # from the go command itself
        continue
    key = event.get("Package") or event.get("ImportPath"), event.get("Test")
    action = event["Action"]
    if action in ("output", "build-output"):
        output[key].append(event["Output"])
    elif action in ("fail", "build-fail"):
        failed.append(key)
    elif action == "skip" and key[1]:
        skipped.append(key)
    if action in ("pass", "fail") and not key[1]:
        ended += 1
        print(f"{action}  {key[0]}  {event.get('Elapsed', 0):.1f}s")
for key in failed:
    print(f"\n--- {key[0]} {key[1] or ''}")
    print("".join(output[key])[-8000:])
for package, test in skipped:
    print(f"skipped: {package} {test}")
print("".join(output[None]))
sys.exit(1 if failed or skipped or not ended else 0)

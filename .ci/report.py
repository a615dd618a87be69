"""Reads the output of go test -json. Prints one line for each package and the output of every failed test. A skipped test
counts as a failure, because CI is the only place that would have run it. The exception are tests that ask for another
value of EXTMESH_SLOW: if a second argument is given, it is a file to which those that ask for 1 are written, one regular
expression for all."""
import collections, json, os, re, sys

output, failed, skipped, started, ended = collections.defaultdict(list), [], [], 0, 0
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
    if action == "start":
        started += 1
    if action in ("pass", "fail", "skip") and not key[1]:
        ended += 1
    if action in ("pass", "fail") and not key[1]:
        print(f"{action}  {key[0]}  {event.get('Elapsed', 0):.1f}s")
for key in failed:
    print(f"\n--- {key[0]} {key[1] or ''}")
    print("".join(output[key])[-8000:])
slow, wrong = set(), False
for key in skipped:
    asks = re.search(r"; set EXTMESH_SLOW=(1|nightly)\n", "".join(output[key]))
    if asks and asks[1] == "1" and not os.environ.get("EXTMESH_SLOW"):
        slow.add(key[1].split("/")[0])
    elif not (asks and asks[1] == "nightly" and os.environ.get("EXTMESH_SLOW") != "nightly"):
        wrong = True
        print(f"skipped: {key[0]} {key[1]}")
if len(sys.argv) > 2:
    with open(sys.argv[2], "w") as f:
        f.write("|".join(sorted(f"^{name}$" for name in slow)))
print("".join(output[None]))
if started != ended:
    print(f"{started} packages were started, and {ended} ended: the go command was stopped")
sys.exit(1 if failed or wrong or not ended or started != ended else 0)

# Functions that .ci/run and .ci/nightly share. Both source this file from the root of a checkout.
export CI=true

log=$(mktemp)
slow=$(mktemp)
trap 'rm -f "$log" "$slow"' EXIT

# step prints the name of what comes next and the seconds since the start.
step() { printf '\n== %s (%ss)\n' "$1" "$SECONDS"; }

# tests runs go test with the given arguments. It prints one line for each package and all output of a failed test. A
# skipped test counts as a failure, unless it is slow: the file $slow then has a regular expression of the slow tests.
tests() {
	go test -json "$@" >"$log" || true
	python3 .ci/report.py "$log" "$slow"
}

# fuzz_all runs every fuzz target in the tree for the given number of executions each. The bound is a count and not a
# time: before Go 1.27 a target that found nothing can fail when its time is up (golang/go#75804).
fuzz_all() {
	local found dir target
	for found in $(git grep -oE '^func Fuzz[A-Za-z0-9_]+' -- '*_test.go' | sed 's/:func /:/'); do
		dir=$(dirname "${found%%:*}")
		target=${found##*:}
		echo "$dir $target"
		if ! go test -run '^$' -fuzz "^$target\$" -fuzztime "${1}x" -fuzzminimizetime 10x "./$dir" >"$log" 2>&1; then
			cat "$log"
			return 1
		fi
		tail -1 "$log"
	done
}

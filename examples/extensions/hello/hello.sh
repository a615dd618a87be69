#!/bin/sh
# hello: an extension in plain POSIX shell. It reads JSON-RPC requests from stdin and writes the responses to stdout, one
# message per line. Logs go to stderr. It was written from docs/protocol.md alone.
LC_ALL=C
export LC_ALL

# envelope prints "<id> <method>" of a message, with "-" for a missing one. Members may be in any order and params may
# contain an "id", so it removes, in this order: escapes, brackets inside strings, the outer braces, and nested values.
# The message's own scalars remain.
envelope() {
	printf '%s\n' "$1" | sed -n '
		s/\\./_/g
		:quoted
		s/^\([^"]*\("[^"]*"[^"]*\)*"[^]["{}]*\)[]{}[]/\1_/
		t quoted
		s/^[^{]*{//
		s/}[^}]*$//
		:nested
		s/{[^{}]*}//
		s/\[[^][]*\]//
		t nested
		h
		s/.*"id"[[:space:]]*:[[:space:]]*\("[^"]*"\).*/\1/
		t id
		s/.*"id"[[:space:]]*:[[:space:]]*\([0-9][0-9]*\).*/\1/
		t id
		s/.*/-/
		:id
		x
		t clear
		:clear
		s/.*"method"[[:space:]]*:[[:space:]]*"\([^"[:space:]]*\)".*/\1/
		t method
		s/.*/-/
		:method
		H
		x
		s/\n/ /
		p'
}

# string prints the JSON string after the first key $2 of $1, without quotes but with its escapes, so that it can be
# written into JSON unchanged.
string() {
	printf '%s\n' "${1#*\""$2"\"}" |
		sed -n 's/^[[:space:]]*:[[:space:]]*"\([^"\\]*\(\\.[^"\\]*\)*\)".*/\1/p'
}

result() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
error() { printf '{"jsonrpc":"2.0","id":%s,"error":{"code":%s,"message":"%s"}}\n' "$1" "$2" "$3"; }

greet='{"name":"greet","description":"Greets a person by name.","input_schema":{"type":"object","properties":{"name":{"type":"string","description":"the name of the person"}},"required":["name"]}}'
fixed='{"name":"fixed","description":"Answers with the same bytes each time: numbers and escapes that a re-encoding hop would change.","input_schema":{"type":"object"}}'

# No byte of this may change on the way to the caller: an integer over 2^53, a number beyond float64, 1.0 that must not
# become 1, characters that some encoders escape, escapes that some decode, unsorted keys.
line='{"z":9007199254740993,"a":1e400, "one":1.0,"html":"<&>","escapes":"\u00e9\/\"\\\t\ud83d\ude00","raw":"é😀","empty":{ }}'

while IFS= read -r message || [ -n "$message" ]; do
	[ -n "$message" ] || continue # an empty line precedes the end of stdin
	if [ ${#message} -gt 16384 ]; then # sed would need seconds, or much longer; the id is near the beginning
		id=${message#*\"id\":} id=${id%%[,\}]*}
		case $id in '' | *[!0-9]*) ;; *) error "$id" -32006 "a message may have 16 KiB here" ;; esac
		continue
	fi
	envelope=$(envelope "$message")
	id=${envelope%% *}
	method=${envelope#* }

	case $id,$method in
	*,shutdown) exit 0 ;;
	-,-) error null -32700 "not a JSON-RPC message" ;;
	-,*) ;; # an unknown notification
	*,-) error "$id" -32600 "no method" ;;
	*,initialize) result "$id" "{\"server_version\":\"1.0.0\",\"tools\":[$greet,$fixed],\"hooks\":[]}" ;;
	*,ping) result "$id" '{}' ;;
	*,tools/greet)
		name=$(string "$message" name)
		if [ -n "$name" ]; then
			result "$id" "{\"greeting\":\"Hello, $name!\"}"
		else
			error "$id" -32602 'greet requires the string argument \"name\"'
		fi
		;;
	*,tools/fixed) result "$id" "$line" ;;
	*) error "$id" -32601 "hello has no method $method" ;;
	esac
done

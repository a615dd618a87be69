#!/bin/sh
# hello: an extension in plain POSIX shell. One JSON-RPC message a line comes in on stdin, one a line goes out
# on stdout; stderr is for people. docs/protocol.md is all it was written from.
LC_ALL=C
export LC_ALL

# envelope prints "<id> <method>" of a message, "-" for what is missing. Members come in any order and params
# may hold an "id" of their own, so it takes away, in this order: escapes, brackets inside strings, the outer
# braces, and whatever is nested. What is left are the envelope's own scalars.
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

# string prints the JSON string behind the first key $2 of $1, without its quotes and with its escapes: it
# can go back into JSON as it is.
string() {
	printf '%s\n' "${1#*\""$2"\"}" |
		sed -n 's/^[[:space:]]*:[[:space:]]*"\([^"\\]*\(\\.[^"\\]*\)*\)".*/\1/p'
}

result() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$1" "$2"; }
error() { printf '{"jsonrpc":"2.0","id":%s,"error":{"code":%s,"message":"%s"}}\n' "$1" "$2" "$3"; }

greet='{"name":"greet","description":"Greets somebody by name.","input_schema":{"type":"object","properties":{"name":{"type":"string","description":"whom to greet"}},"required":["name"]}}'
fixed='{"name":"fixed","description":"Answers with the same bytes each time: numbers and escapes that a careless hop would change.","input_schema":{"type":"object"}}'

# Not a byte of this may change on its way to the caller: an integer over 2^53, a number beyond float64, 1.0
# that must not become 1, characters that some encoders escape, escapes that some decode, keys out of order.
line='{"z":9007199254740993,"a":1e400, "one":1.0,"html":"<&>","escapes":"\u00e9\/\"\\\t\ud83d\ude00","raw":"é😀","empty":{ }}'

while IFS= read -r message || [ -n "$message" ]; do
	[ -n "$message" ] || continue # stopping begins with an empty line; the end of stdin follows
	envelope=$(envelope "$message")
	id=${envelope%% *}
	method=${envelope#* }

	case $id,$method in
	*,shutdown) exit 0 ;;
	-,-) error null -32700 "not a JSON-RPC message" ;;
	-,*) ;; # a notification, and none that we know
	*,-) error "$id" -32600 "no method" ;;
	*,initialize) result "$id" "{\"server_version\":\"1.0.0\",\"tools\":[$greet,$fixed],\"hooks\":[]}" ;;
	*,ping) result "$id" '{}' ;;
	*,tools/greet)
		name=$(string "$message" name)
		if [ -n "$name" ]; then
			result "$id" "{\"greeting\":\"Hello, $name!\"}"
		else
			error "$id" -32602 'greet wants a \"name\" that is a string'
		fi
		;;
	*,tools/fixed) result "$id" "$line" ;;
	*) error "$id" -32601 "hello has no method $method" ;;
	esac
done

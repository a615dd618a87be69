#!/usr/bin/env bash
# disk: an extension in bash that runs as its own service, with a NATS client over bash's TCP socket. It implements
# docs/protocol.md and, below that, NATS's text protocol: command lines, and bodies whose length the command states.
#
#     disk.sh --nats-url nats://127.0.0.1:4222 --subject-prefix ext
#
# It handles one call at a time, which is sufficient for fast tools.
export LC_ALL=C # lengths are in bytes
if ((BASH_VERSINFO[0] < 5 && (BASH_VERSINFO[0] < 4 || BASH_VERSINFO[1] < 2))); then
	echo "disk: this is bash $BASH_VERSION; want 4.2 or newer (on macOS: brew install bash)" >&2
	exit 2
fi
id=disk version=1.0.0 instance=sh-$$-$RANDOM state=ready

url=${NATS_URL:-nats://127.0.0.1:4222} prefix=ext subjects=
while [ $# -gt 0 ]; do
	case $1 in
	--nats-url) url=$2 ;;
	--prefix) prefix=$2 ;;          # of the mesh
	--subject-prefix) subjects=$2 ;; # of this service's subjects; default: that of the mesh
	*) echo "disk: unknown flag $1; want --nats-url, --prefix or --subject-prefix" >&2 && exit 2 ;;
	esac
	shift 2 || { echo "disk: the flag requires a value" >&2 && exit 2; }
done
subjects=${subjects:-$prefix}

# nats://user:password@host:port, without characters that JSON would escape.
if [[ ! $url =~ ^(nats://)?(([^:@/\"\\]*):([^@/\"\\]*)@)?([^:/@,]+)(:([0-9]+))?/?$ ]]; then
	echo "disk: cannot read the address $url; want nats://[user:password@]host[:port]" >&2
	exit 2
fi
user=${BASH_REMATCH[3]} password=${BASH_REMATCH[4]} host=${BASH_REMATCH[5]} port=${BASH_REMATCH[7]:-4222}

# take reads a number of bytes and no more: head of other systems reads ahead.
if head --version >/dev/null 2>&1; then take() { head -c "$1"; }; else take() { dd bs=1 count="$1" 2>/dev/null; }; fi

send() { printf '%s\r\n' "$@" >&3; }
publish() { # subject text
	printf 'PUB %s %d\r\n%s\r\n' "$1" "${#2}" "$2" >&3
}

announce() {
	publish "$prefix.registry.announce.$id" '{"id":"disk","version":"'$version'","instance":"'$instance'","subject_prefix":"'"$subjects"'","name":"Disk","description":"How full disks are."}'
	heartbeat
}
heartbeat() {
	publish "$prefix.registry.heartbeat.$id" '{"id":"disk","version":"'$version'","instance":"'$instance'","state":"'$state'"}'
	next=$((SECONDS + 15))
}

tools='[{"name":"usage","description":"How full the disk is that holds a path.","input_schema":{"type":"object","properties":{"path":{"type":"string","description":"an absolute path; default /"}}},"annotations":{"readOnlyHint":true}},
{"name":"mounts","description":"How many file systems are mounted.","input_schema":{"type":"object"},"annotations":{"readOnlyHint":true}}]'

# envelope prints "<id> <method>" of a message, with "-" for a missing one. Members may be in any order and params may
# contain an "id", so it removes, in this order: escapes, brackets inside strings, the outer braces, and nested values.
# The message's own scalars remain.
envelope() {
	printf '%s\n' "$1" | tr '\n' ' ' | sed -n '
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

answer() { # takes the request, prints the response
	local envelope id method path percent
	if [ ${#1} -gt 16384 ]; then # sed would need seconds, or much longer
		error null -32006 "a request may have 16 KiB here"
		return
	fi
	envelope=$(envelope "$1")
	id=${envelope% *} method=${envelope##* }
	case $id,$method in
	-,*) error null -32600 "a request needs an id" ;;
	*,initialize) result "$id" '{"server_version":"'$version'","tools":'"$tools"',"hooks":[]}' ;;
	*,ping) result "$id" '{}' ;;
	*,tools/mounts) result "$id" '{"mounts":'$(($(df -P | wc -l) - 1))'}' ;;
	*,tools/usage)
		path=/
		if [[ $1 == *'"path"'* ]]; then # escapes are not decoded, so the path must not contain any
			[[ $1 =~ \"path\"[[:space:]]*:[[:space:]]*\"(/[A-Za-z0-9_./@ -]*)\" ]] && path=${BASH_REMATCH[1]} || path=
		fi
		percent=$([ -n "$path" ] && df -P -- "$path" 2>/dev/null | awk 'NR == 2 { print $5 + 0 }')
		if [ -n "$percent" ]; then
			result "$id" '{"path":"'"$path"'","used_percent":'"$percent"'}'
		else
			error "$id" -32602 "path must be an absolute path that exists on this host"
		fi
		;;
	*) error "$id" -32601 "disk has no method $method" ;;
	esac
}
result() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}' "$1" "$2"; }
error() { printf '{"jsonrpc":"2.0","id":%s,"error":{"code":%s,"message":"%s"}}' "$1" "$2" "$3"; }

# To stop without losing a call: unsubscribe, and keep answering until the server confirms with PONG.
stop() {
	[ -n "$stopping" ] && return
	stopping=yes state=draining
	[ -n "$connected" ] || exit 0
	heartbeat
	send "UNSUB 1" "UNSUB 2" PING
}
trap stop TERM INT
# Below, only backquotes are used: bash 5.2 may run a trap while it parses $(…), and then both fail ("unexpected EOF while
# looking for matching `)'"). Functions called inside backquotes have no traps and may use $(…).

trap '' PIPE # a write to a connection that has ended fails; the next read finds its end

# connection serves calls until the connection ends.
connection() {
	local line part words body text status
	{ exec 3<>"/dev/tcp/$host/$port"; } 2>/dev/null || return
	# With "headers":false the server removes headers from messages and sends no "no responders" status.
	send 'CONNECT {"verbose":false,"pedantic":false,"name":"disk","lang":"bash","version":"'$version'","headers":false,"user":"'"$user"'","pass":"'"$password"'"}' \
		"SUB $subjects.$id.rpc q 1" "SUB $prefix.registry.request 2"
	connected=yes
	announce
	[ -z "$stopping" ] || send "UNSUB 1" "UNSUB 2" PING
	while :; do
		IFS= read -r -t 1 -u 3 line
		status=$?
		[ $SECONDS -lt $next ] || heartbeat
		if [ $status -gt 0 ]; then
			part+=$line
			[ $status -gt 128 ] || return # 1 is the end of the connection; above 128 is the timeout
			continue
		fi
		line=$part${line%$'\r'} part=
		case $line in
		MSG\ *) # subject, subscription id, reply subject if any, length
			read -ra words <<<"$line"
			body=`take "${words[-1]}" <&3; echo .` # the dot protects newlines at the end
			read -r -u 3 _
			case ${words[2]},${#words[@]},${words[3]} in
			2,*) announce ;;
			1,5,_INBOX.*) # nothing else: the caller chooses the reply subject, and this user may publish heartbeats, too
				text=`answer "${body%.}"`
				publish "${words[3]}" "$text"
				;;
			esac
			;;
		PING) send PONG ;;
		PONG)
			if [ "$stopping" = yes ]; then # all requests are answered
				stopping=flushed
				publish "$prefix.registry.shutdown.$id" '{"id":"disk","instance":"'$instance'","reason":"shutdown"}'
				send PING
			elif [ "$stopping" = flushed ]; then
				exit 0
			fi
			;;
		INFO*'"tls_required":true'*) echo "disk: this server requires TLS, which bash does not support" >&2 && exit 1 ;;
		-ERR*) echo "disk: error from NATS: ${line#-ERR }" >&2 ;;
		esac
	done
}

while :; do
	connection
	connected=
	[ -z "$stopping" ] || exit 0
	echo "disk: cannot connect to NATS at $host:$port, retrying" >&2
	sleep 1
done

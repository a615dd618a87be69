package serve

import "testing"

func TestCallers(t *testing.T) {
	const nuid = "AKmJ0h4CEoSNkZrBjEVQGc"
	for reply, want := range map[string]string{
		"_INBOX." + nuid + ".x1":                "_INBOX." + nuid,
		"_INBOX_agent." + nuid + ".x1":          "_INBOX_agent." + nuid,
		"_INBOX.bob." + nuid + ".x1":            "_INBOX.bob",
		"_INBOX.bob.a.b.c":                      "_INBOX.bob",
		"team.inbox." + nuid + ".x1":            "team.inbox." + nuid,
		"_INBOX.bob.x1":                         "_INBOX.bob",
		"_INBOX." + nuid:                        "",
		nuid + ".x":                             "",
		"x":                                     "",
		"_INBOX." + nuid + ".":                  "_INBOX." + nuid,
		"_INBOX." + nuid[:21] + "_.x1":          "_INBOX." + nuid[:21] + "_",
		"_INBOX." + nuid[1:] + ".x1":            "_INBOX." + nuid[1:],
		"_INBOX.." + nuid + ".x":                "_INBOX.", // no server delivers this
		"reply." + nuid + "." + nuid + ".chunk": "reply." + nuid + "." + nuid,
	} {
		if got := callerOf(reply); got != want {
			t.Errorf("the caller of %s is %q, want %q", reply, got, want)
		}
	}
}

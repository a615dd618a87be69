package remote

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/manifest"
)

// TestRefusalCut uses servers that repeat a secret so often that it extends over the position where the text is cut.
func TestRefusalCut(t *testing.T) {
	long := strings.Repeat(secret+"-", 34)[:800]
	for _, tt := range []struct {
		name, kind, body string
		max              int64
		want             string
	}{
		{"whole", "", "bad key " + long, 0, "bad key [X-Key]"},
		{"longer than what is looked at", "", strings.Repeat(long+" ", 9), 0, "[X-Key] [X-Key] [X-Key] [X-Key]…"},
		{"a message", "application/json", `{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"` + strings.Repeat(long+" ", 9) + `"}}`, 0,
			"[X-Key] [X-Key] [X-Key] [X-Key]…"},
		{"longer than what is read", "", strings.Repeat(long+" ", 9), 2 << 10, "[X-Key] [X-Key]…"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			srv := serve(t, func(w http.ResponseWriter, r *request) {
				w.Header().Set("Content-Type", tt.kind)
				w.WriteHeader(http.StatusUnauthorized)
				io.WriteString(w, tt.body)
			})
			c := start(t, Config{URL: srv.URL, Dialect: manifest.Ext, MaxResult: tt.max, Headers: map[string]string{"X-Key": long}})
			_, err := c.Call(soon(t), "x", nil)
			if err == nil || !strings.Contains(err.Error(), "401 Unauthorized: "+tt.want+";") {
				t.Errorf("%v\nwant %q", err, tt.want)
			}
		})
	}
}

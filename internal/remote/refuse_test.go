package remote

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/extmesh/extmesh/pkg/rpc"
)

func TestRefusedAddresses(t *testing.T) {
	for address, refused := range map[string]bool{
		"169.254.169.254": true, "169.254.0.1": true, "fe80::1": true, "fd00:ec2::254": true, "fd20:ce::254": true,
		"100.100.100.200": true, "168.63.129.16": true, "192.0.0.192": true,
		"::ffff:169.254.169.254": true, "64:ff9b::a9fe:a9fe": true, "fe80::1%eth0": true,
		"127.0.0.1": false, "::1": false, "10.0.0.1": false, "169.253.255.255": false, "169.255.0.1": false,
		"fd00:ec2::253": false, "1.1.1.1": false, "64:ff9b::101:101": false,
	} {
		ip := netip.MustParseAddr(address)
		if err := (addresses{refused: refusedNetworks}).check(ip); (err != nil) != refused {
			t.Errorf("%s: %v", address, err)
		}
		// A URL that contains the address is refused before it is sent to a proxy, which would connect to it.
		host := address
		if ip.Is6() {
			host = "[" + strings.ReplaceAll(address, "%", "%25") + "]"
		}
		if at := newEndpoint(Config{URL: "http://" + host + ":8080/x"}); (at.bad != nil) != refused {
			t.Errorf("http://%s: %v", host, at.bad)
		}
		if at := newEndpoint(Config{URL: "http://" + host, Allow: []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}}); at.bad != nil {
			t.Errorf("allowed, http://%s: %v", host, at.bad)
		}
	}
	err := Probe(t.Context(), Config{URL: "http://169.254.169.254/latest/meta-data/"})
	fails(t, err, rpc.CodeUnavailable, rpc.RanNo, "list it under http_allow in extensions.yaml")
}

// TestAddressIsCheckedAfterTheName: there is no connection to a name that resolves to a refused address, even if it
// resolved to another address before or if it is resolved again after a redirect.
func TestAddressIsCheckedAfterTheName(t *testing.T) {
	requests := 0
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		w.Header().Set("Connection", "close")
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/next", http.StatusTemporaryRedirect)
		}
	}))
	defer srv.Close()
	url := strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)
	loopback := []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
	get := func(to addresses) error {
		at := newEndpoint(Config{URL: url})
		at.to = to
		wires, cut := context.WithCancel(t.Context())
		defer cut()
		at.connect(wires)
		defer at.client.CloseIdleConnections()
		resp, err := at.do(t.Context(), http.MethodGet, nil, nil)
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	if err := get(addresses{refused: refusedNetworks}); err != nil || requests != 2 {
		t.Fatalf("%v, %d requests", err, requests)
	}
	if err := get(addresses{refused: loopback}); err == nil || !strings.Contains(err.Error(), "to which extensions are not connected") || requests != 2 {
		t.Errorf("refused: %v, %d requests", err, requests)
	}
	if err := get(addresses{refused: loopback, allowed: loopback}); err != nil || requests != 4 {
		t.Errorf("allowed: %v, %d requests", err, requests)
	}
}

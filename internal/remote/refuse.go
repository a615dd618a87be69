package remote

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
)

// refusedNetworks are never the addresses of extensions: link-local addresses, at which cloud machines also get their
// credentials, and the metadata addresses of clouds in other networks.
var refusedNetworks = []netip.Prefix{
	netip.MustParsePrefix("169.254.0.0/16"),     // link-local; AWS, Azure, Google, OpenStack and others
	netip.MustParsePrefix("fe80::/10"),          // link-local
	netip.MustParsePrefix("fd00:ec2::254/128"),  // AWS
	netip.MustParsePrefix("fd20:ce::254/128"),   // Google
	netip.MustParsePrefix("100.100.100.200/32"), // Alibaba
	netip.MustParsePrefix("168.63.129.16/32"),   // Azure
	netip.MustParsePrefix("192.0.0.192/32"),     // Oracle
}

// nat64 is the prefix under which IPv4 addresses are reached from IPv6.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// addresses decide which addresses may be connected to: all except those in refused, unless they are in allowed.
type addresses struct{ refused, allowed []netip.Prefix }

// check returns an error for an address that is refused.
func (a addresses) check(ip netip.Addr) error {
	ip = ip.Unmap().WithZone("")
	if nat64.Contains(ip) {
		b := ip.As16()
		ip = netip.AddrFrom4([4]byte(b[12:]))
	}
	in := func(n netip.Prefix) bool { return n.Contains(ip) }
	if !slices.ContainsFunc(a.refused, in) || slices.ContainsFunc(a.allowed, in) {
		return nil
	}
	return fmt.Errorf("%s is a link-local or cloud metadata address, to which extensions are not connected; if it is right, list it under http_allow in extensions.yaml", ip)
}

// control is the ControlContext of a net.Dialer. It checks the address that is about to be connected to, after name
// resolution, so that a name cannot resolve to another address after the check.
func (a addresses) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return a.check(at.Addr())
}

// checkURL checks an IP address in a URL, since a proxy would connect to it without calling control.
func (a addresses) checkURL(u *url.URL) error {
	ip, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return nil
	}
	return a.check(ip)
}

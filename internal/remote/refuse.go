package remote

import (
	"context"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"syscall"
)

// refusedNetworks are where no extension is: link-local addresses, at which machines in a cloud also find their
// credentials, and the addresses that clouds have for the latter elsewhere.
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

// addresses decide what is connected to: everything but what is in refused and not in allowed.
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

// control is a net.Dialer's ControlContext. It sees the address that is about to be connected to, after names have
// been looked up, so that no name can lead elsewhere between a check and its use.
func (a addresses) control(_ context.Context, _, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	return a.check(at.Addr())
}

// checkURL checks an address that is written in a URL. A proxy, if there is one, would connect to it in our place.
func (a addresses) checkURL(u *url.URL) error {
	ip, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return nil
	}
	return a.check(ip)
}

package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/internal/words"
)

// The diagnostics of announcements that an operator should check, because they could come from a stolen credential.
const (
	codeNewHost     = "new_host"     // a version that was not seen before, on a host that has not run this extension
	codeVersionJump = "version_jump" // a major version at least two above the highest one seen
)

const (
	alertAge   = 24 * time.Hour   // how long an alert is shown while its instance exists
	settleTime = 30 * time.Second // an extension seen for less is still being announced for the first time
	maxHosts   = 100              // remembered per extension
)

// alert is a diagnostic about one instance.
type alert struct {
	diagnostic wire.Diagnostic
	instance   string // restored for an alert read from the catalog
	at         time.Time
}

// isAbout reports whether the alert is about an instance. That of one read from the catalog is in its message.
func (a *alert) isAbout(instance string) bool {
	return a.instance == instance || a.instance == restored && strings.HasPrefix(a.diagnostic.Message, "instance "+instance+" announced ")
}

// restored is the instance of alerts read from the catalog. It is not a legal name of an instance.
const restored = "/"

func hostOf(bridge, host string) string { return cmp.Or(bridge, host) }

// isManifest reports whether a bridge lists the manifest of a service, which is no instance.
func (a *announced) isManifest() bool { return a.Instance == "" && a.from != "" }

// raiseAlerts compares an announcement with what is stored of its extension, before it is added.
func (f *core) raiseAlerts(x *extension, a *announced, now time.Time) {
	if a.isManifest() {
		return
	}
	host := hostOf(a.Bridge, a.Host)
	known := x.hosts[host] || len(x.hosts) >= maxHosts && x.runsOn(host, a.Instance)
	settled := now.Sub(x.since) >= settleTime
	if settled && !a.implied {
		versions := f.versionsOf(x, a.Instance)
		if !known && len(x.hosts) > 0 && !slices.Contains(versions, a.Version) {
			x.alert(codeNewHost, a, now, fmt.Sprintf("instance %s announced version %s on %s, a new host of this extension; it has run on %s",
				cmp.Or(a.Instance, "without a name"), a.Version, cmp.Or(host, "a host without a name"), hostList(x.hosts)))
		}
		if highest := highestOf(versions); highest != "" && major(a.Version) > major(highest)+1 {
			x.alert(codeVersionJump, a, now, fmt.Sprintf("instance %s announced version %s; the highest earlier version is %s",
				cmp.Or(a.Instance, "without a name"), a.Version, highest))
		}
	}
	x.rememberHost(host)
}

// versionsOf returns the versions of x, without those of one instance.
func (f *core) versionsOf(x *extension, except string) []string {
	all := map[string]bool{}
	health, _ := f.mon.Extension(x.id)
	for _, i := range health.Instances {
		if i.Instance != except {
			all[i.Version] = true
		}
	}
	for name, a := range x.announcements {
		if name != except && !a.implied && !a.isManifest() {
			all[a.Version] = true
		}
	}
	if x.shown != nil && !x.shown.implied && !x.shown.isManifest() {
		all[x.shown.Version] = true
	}
	delete(all, "")
	return slices.Sorted(maps.Keys(all))
}

func highestOf(versions []string) string {
	best := ""
	for _, v := range versions {
		if semver.IsValid("v"+v) && (best == "" || compareVersions(v, best) > 0) {
			best = v
		}
	}
	return best
}

// major is the major version; 0 for an invalid version.
func major(version string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(semver.Major("v"+version), "v"))
	return n
}

// hostList formats at most three hosts.
func hostList(hosts map[string]bool) string {
	names := slices.Sorted(maps.Keys(hosts))
	for n, name := range names {
		names[n] = cmp.Or(name, "a host without a name")
	}
	return firstOf(names)
}

// firstOf formats the first three names, and the number of the others.
func firstOf(names []string) string {
	if more := len(names) - 3; more > 0 {
		names = append(names[:3:3], fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// runsOn reports whether another instance than except runs on a host.
func (x *extension) runsOn(host, except string) bool {
	for instance, p := range x.locations {
		if instance != except && hostOf(p.bridge, p.host) == host {
			return true
		}
	}
	return false
}

func (x *extension) rememberHost(host string) {
	if len(x.hosts) < maxHosts {
		x.hosts[strings.Clone(host)] = true
	}
}

// alert adds a diagnostic, unless there are too many.
func (x *extension) alert(code string, a *announced, now time.Time, message string) {
	x.addAlert(alert{wire.Diagnostic{Level: "warn", Code: code, Message: words.Clip(message, maxReason)}, a.Instance, now})
}

func (x *extension) addAlert(a alert) {
	same := func(o alert) bool { return o.diagnostic == a.diagnostic }
	if len(x.alerts) < maxAlike && !slices.ContainsFunc(x.alerts, same) {
		x.alerts = append(x.alerts, a)
	}
}

// dropAlerts removes the alerts about one instance, and old ones.
func (f *core) dropAlerts(x *extension, instance string, now time.Time) {
	before := len(x.alerts)
	x.alerts = slices.DeleteFunc(x.alerts, func(a alert) bool { return a.isAbout(instance) || now.Sub(a.at) > alertAge })
	if len(x.alerts) != before {
		f.mark(SpecKey(x.id), false)
	}
}

// noInstance makes dropAlerts remove only old alerts.
const noInstance = "//"

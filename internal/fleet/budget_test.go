package fleet

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/extmesh/extmesh/internal/wire"
	"github.com/extmesh/extmesh/pkg/heartbeat"
)

// large returns an announcement of about size bytes.
func large(id, instance string, size int) wire.Announce {
	return wire.Announce{ID: id, Version: "1.0.0", Instance: instance, HandshakeHash: "h",
		Capabilities: wire.Capabilities{Channels: []string{strings.Repeat("x", size)}}}
}

// TestBytesPerID: the announcements of one extension are limited in size, and refusing one harms no other extension.
func TestBytesPerID(t *testing.T) {
	f := testFleet(t)
	const size = 200 << 10
	for n := range 40 {
		f.announce(large("greedy", fmt.Sprint("i", n), size))
	}
	if n := f.refused["announce"]; n != 40-maxPerID/size {
		t.Errorf("%d announcements were refused", n)
	}
	f.announce(large("greedy", "i0", size-1)) // replaces an admitted one
	f.announce(wire.Announce{ID: "weather", Version: "1.0.0", Instance: "n"})
	x := f.exts["greedy"]
	if n := len(x.announcements); n != maxPerID/size || len(x.announcements["i0"].Capabilities.Channels[0]) != size-1 {
		t.Errorf("%d announcements are kept, the first of %d bytes", n, x.announcements["i0"].size)
	}
	if f.exts["weather"] == nil {
		t.Error("another extension was not admitted")
	}
}

// TestEviction: if there is no space left, announcements of instances that never sent a heartbeat are evicted,
// starting with the extension that uses the most memory. An instance that did send one stays.
func TestEviction(t *testing.T) {
	f := testFleet(t)
	f.room = 32 << 20
	f.announce(wire.Announce{ID: "alive", Version: "1.0.0", Instance: "n"})
	f.send("heartbeat", "alive", `{"id":"alive","instance":"n"}`)
	const size = 250 << 10
	for id := range 10 { // 40 MB in all
		f.at = f.at.Add(time.Second)
		for n := range maxPerID / size {
			f.announce(large(fmt.Sprint("silent", id), fmt.Sprint("i", n), size))
		}
	}
	if f.evicted.IsZero() {
		t.Error("there was room for all")
	}
	f.at = f.at.Add(time.Second)
	f.announce(wire.Announce{ID: "late", Version: "1.0.0", Instance: "n"})
	if f.exts["late"] == nil || f.size > f.room || f.exts["alive"].announcements["n"] == nil {
		t.Errorf("%d of %d bytes are kept; the instance that sends heartbeats: %v", f.size, f.room, f.exts["alive"].announcements["n"])
	}
}

// TestFullInventoryWithoutMemory: a bridge's periodic inventory, and a change in it, are accepted when no memory is left.
func TestFullInventoryWithoutMemory(t *testing.T) {
	f := testFleet(t)
	inventory := func(seq uint64, state heartbeat.State, hash string) {
		v := wire.Inventory{Bridge: "b", Run: "r", Seq: seq, Kind: wire.InventoryFull, Host: &wire.InventoryHost{Version: "1"}}
		for n := range 20 {
			v.Instances = append(v.Instances, wire.InventoryInstance{State: state,
				Announce: wire.Announce{ID: fmt.Sprint("x", n), Version: "1.0.0", Instance: "n", Bridge: "b", About: wire.About{Description: strings.Repeat("d", 500)}, HandshakeHash: hash}})
		}
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		f.send("host", "b", string(data))
	}
	inventory(1, heartbeat.Spawning, "")
	f.room = f.size
	inventory(2, heartbeat.Ready, "h") // the announcements have grown
	inventory(3, heartbeat.Ready, "h")
	if n := f.refused["inventory"]; n != 0 {
		t.Errorf("%d inventories are refused", n)
	}
	for n := range 20 {
		if x, ok := f.mon.Extension(fmt.Sprint("x", n)); !ok || x.Instances[0].State != heartbeat.Ready {
			t.Fatalf("x%d is %+v", n, x)
		}
	}
}

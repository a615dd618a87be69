package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// certificate writes tls.crt, tls.key and ca.crt for 127.0.0.1.
func certificate(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "nats"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	write(t, filepath.Join(dir, "tls.crt"), public)
	write(t, filepath.Join(dir, "ca.crt"), public)
	write(t, filepath.Join(dir, "tls.key"), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return dir
}

// TestTLS removes the "#" from the TLS block of settings.conf, as its comment describes, and runs programs with --tlsca.
func TestTLS(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../deploy/nats/settings.conf")
	if err != nil {
		t.Fatal(err)
	}
	from, to := strings.Index(string(text), "# tls {\n"), strings.LastIndex(string(text), "# }")
	if from < 0 || to < from {
		t.Fatal("settings.conf has no block for TLS")
	}
	block := string(text[from : to+len("# }")])
	dir := certificate(t)
	on := strings.ReplaceAll(strings.ReplaceAll("\n"+block, "\n#", "\n"), `"/tls/`, `"`+dir+"/")
	url, _ := startShipped(t, "one.conf", nil, block, on)
	url = strings.Replace(url, "tls://", "nats://", 1) // the server's greeting requires TLS
	ca := "--tlsca=" + filepath.Join(dir, "ca.crt")
	start(t, []string{"NATS_URL=" + as(url, "registry")}, program(t, "registry"), "--inbox-prefix=_INBOX.registry", ca)
	eventually(t, time.Minute, "the catalog can be read", func() bool {
		_, _, code := extctl(t, as(url, "operator"), "list", "--inbox-prefix=_INBOX.operator", ca)
		return code == 0
	})
	if nc, err := nats.Connect(as(url, "agent"), nats.Timeout(time.Minute)); err == nil {
		nc.Close()
		t.Error("a client connects without knowing the authority")
	}
}

// Package tlstest makes certificates for tests.
package tlstest

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
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Authority signs certificates; its own is the file CA in Dir.
type Authority struct {
	Dir, CA string

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// New makes an authority with its files in a folder of the test's own.
func New(t testing.TB) *Authority {
	t.Helper()
	a := &Authority{Dir: t.TempDir()}
	a.CA = filepath.Join(a.Dir, "ca.pem")
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key = must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	write(t, a.CA, "CERTIFICATE", must.Get(x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key))(t))
	return a
}

// Issue makes NAME.pem and NAME.key in Dir: good until the given time, for server
// and client alike, with the given host names and addresses.
func (a *Authority) Issue(t testing.TB, name string, until time.Time, hosts ...string) (cert, key string) {
	t.Helper()
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: until, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	k := must.Get(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	cert, key = filepath.Join(a.Dir, name+".pem"), filepath.Join(a.Dir, name+".key")
	write(t, cert, "CERTIFICATE", must.Get(x509.CreateCertificate(rand.Reader, c, a.cert, k.Public(), a.key))(t))
	write(t, key, "EC PRIVATE KEY", must.Get(x509.MarshalECPrivateKey(k))(t))
	return cert, key
}

func write(t testing.TB, path, kind string, der []byte) {
	t.Helper()
	must.OK(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

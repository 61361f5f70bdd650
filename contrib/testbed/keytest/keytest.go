// Package keytest makes key files, and credentials as an attacker with a key would.
package keytest

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// Random makes a key.
func Random(t testing.TB) []byte {
	t.Helper()
	key := make([]byte, 32)
	_, _ = rand.Read(key) // never fails
	return key
}

// Line is a key as a key file has it.
func Line(key []byte) string { return base64.StdEncoding.EncodeToString(key) + "\n" }

// File writes a key file and returns its path; it is gone with the test.
func File(t testing.TB, keys ...[]byte) string {
	t.Helper()
	text := "# keys of a test\n"
	for _, k := range keys {
		text += Line(k)
	}
	file := filepath.Join(t.TempDir(), "key")
	must.OK(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

// Forge makes the credential of any user and time.
func Forge(key []byte, uid uint32, at time.Time, payload string) string {
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	text := fmt.Sprintf("KEY1:%d:%d:%x:%s:", uid, at.UnixMilli(), nonce,
		base64.RawURLEncoding.EncodeToString([]byte(payload)))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return fmt.Sprintf("%s%x", text, mac.Sum(nil))
}

package webconfig_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/tlstest"
	"github.com/slurmbridge/slurmbridge/gpuprof/webconfig"
)

func TestCheck(t *testing.T) {
	now := time.Now()
	auth := tlstest.New(t)
	cert, key := auth.Issue(t, "head", now.Add(time.Hour), "head")
	read := func(path string) string {
		text := must.Get(os.ReadFile(path))(t)
		return strings.ReplaceAll("|\n"+string(text), "\n", "\n    ")
	}
	byName := fmt.Sprintf("tls_server_config:\n  cert_file: %s\n  key_file: %s\n", filepath.Base(cert), key)
	inText := fmt.Sprintf("tls_server_config:\n  cert: %s\n  key: %s\n", read(cert), read(key))
	for name, c := range map[string]struct {
		text  string
		at    time.Time
		words []string // of the error; none = there is none
	}{
		"nothing": {"", now, nil},
		"valid":   {byName, now, nil},
		"all settings": {byName +
			"  min_version: TLS13\n  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256]\n  curve_preferences: " +
			"[X25519]\nhttp_server_config: {http2: false}\nrate_limit: {interval: 1s, burst: 3}\n", now, nil},
		"valid, inline":   {inText, now, nil},
		"expired":         {byName, now.Add(2 * time.Hour), []string{cert, "expired at ", "renew"}},
		"expired, inline": {inText, now.Add(2 * time.Hour), []string{"web.yml", "expired at "}},
		"not yet valid":   {byName, now.Add(-3 * time.Hour), []string{cert, "valid from ", "clock"}},
		"absent": {
			"tls_server_config: {cert_file: absent.pem, key_file: " + key + "}\n", now,
			[]string{"absent.pem"},
		},
		"a typo": {"tls_server: {}\n", now, []string{"tls_server"}},
	} {
		file := filepath.Join(auth.Dir, "web.yml")
		must.OK(t, os.WriteFile(file, []byte(c.text), 0o600))
		err := webconfig.Check(file, c.at)
		if (err == nil) != (c.words == nil) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, w := range c.words {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q is not in %v", name, w, err)
			}
		}
	}
	if err := webconfig.Check(filepath.Join(auth.Dir, "absent.yml"), now); err == nil ||
		!strings.Contains(err.Error(), "absent.yml") {
		t.Errorf("no file: %v", err)
	}
	if err := webconfig.Check("", now); err != nil {
		t.Errorf("none: %v", err)
	}
}

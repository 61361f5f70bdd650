package httpapi

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/exporter-toolkit/web"
)

// Whoever the web configuration doesn't let in sees nothing of the page.
func TestPageBehindAPassword(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yaml")
	password := "basic_auth_users:\n  admin: $2a$04$RT3PNIDdtc3UI//xcn3yF.AcEUo/.UR/rOsubCppsb.18d9se7M1W\n" // bcrypt of "secret"
	if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: busy(1, 3).Handler()}
	done := make(chan error, 1)
	systemd := false
	go func() {
		done <- web.Serve(l, srv, &web.FlagConfig{WebListenAddresses: &[]string{l.Addr().String()}, WebSystemdSocket: &systemd, WebConfigFile: &file}, slog.New(slog.DiscardHandler))
	}()
	for pass, want := range map[string]int{"": http.StatusUnauthorized, "wrong": http.StatusUnauthorized, "secret": http.StatusOK} {
		req, _ := http.NewRequest(http.MethodGet, "http://"+l.Addr().String()+"/", http.NoBody)
		if pass != "" {
			req.SetBasicAuth("admin", pass)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != want || strings.Contains(string(body), "gpu001") != (want == http.StatusOK) {
			t.Errorf("password %q: %d %.80s", pass, resp.StatusCode, body)
		}
	}
	srv.Close()
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
}

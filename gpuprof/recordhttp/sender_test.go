package recordhttp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/exporter-toolkit/web"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/tlstest"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// controller serves records with a web_config ("" = none) as slurmbridge does, and returns its address.
func controller(t *testing.T, dir, webConfig string) string {
	t.Helper()
	file, systemd := "", false
	if webConfig != "" {
		file = filepath.Join(dir, "web.yml")
		write(t, file, webConfig)
	}
	l := must.Get(net.Listen("tcp", "127.0.0.1:0"))(t)
	mux := http.NewServeMux()
	mux.Handle("POST "+Path, complete(&Handler{Credentials: &fake{}, AllowUID: root, Keep: (&kept{}).keep}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = web.Serve(l, srv, &web.FlagConfig{
			WebListenAddresses: &[]string{""}, WebSystemdSocket: &systemd,
			WebConfigFile: &file,
		}, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() { srv.Close(); <-done })
	return l.Addr().String()
}

func write(t *testing.T, path, text string) {
	t.Helper()
	must.OK(t, os.WriteFile(path, []byte(text), 0o600))
}

// TLS and passwords by the controller's web_config and the agent's
// controller_config, and what is said where they don't fit.
func TestTLS(t *testing.T) {
	a := tlstest.New(t)
	later := time.Now().Add(time.Hour)
	a.Issue(t, "head", later, "head", "127.0.0.1")
	a.Issue(t, "old", time.Now().Add(-time.Hour), "127.0.0.1")
	a.Issue(t, "named", later, "head")
	a.Issue(t, "node", later)
	server := func(name, more string) string {
		return fmt.Sprintf("tls_server_config:\n  cert_file: %s.pem\n  key_file: %s.key\n%s", name, name, more)
	}
	mutual := "  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: ca.pem\n"
	// bcrypt of "secret"
	password := "basic_auth_users:\n  nodes: $2a$04$RT3PNIDdtc3UI//xcn3yF.AcEUo/.UR/rOsubCppsb.18d9se7M1W\n"
	ca := "tls_config:\n  ca_file: ca.pem\n"
	for _, c := range []struct {
		name, web, scheme, client, want string
	}{
		{"plain", "", "http", "", ""},
		{"TLS", server("head", ""), "https", ca, ""},
		{
			"both show a certificate", server("head", mutual), "https", ca + "  cert_file: node.pem\n  key_file: node.key\n",
			"",
		},
		{"another name", server("named", ""), "https", ca + "  server_name: head\n", ""},
		{"a password", server("head", password), "https", ca + "basic_auth:\n  username: nodes\n  password: secret\n", ""},
		{"unknown authority", server("head", ""), "https", "", "unknown authority"},
		{"wrong name", server("named", ""), "https", ca, "x509: "},
		{"expired", server("old", ""), "https", ca, "expired"},
		{"no certificate of the node", server("head", mutual), "https", ca, "controller_config"},
		{"no password", server("head", password), "https", ca, "basic_auth"},
		{"TLS to a plain port", "", "https", ca, "HTTP response to HTTPS client"},
		{"plain to a TLS port", server("head", ""), "http", "", "https://"},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr, file := controller(t, a.Dir, c.web), ""
			if c.client != "" {
				file = filepath.Join(a.Dir, "client.yml")
				write(t, file, c.client)
			}
			client := must.Get(NewClient(file))(t)
			defer client.CloseIdleConnections()
			s := &Sender{URL: c.scheme + "://" + addr, Credentials: &fake{}, Client: client}
			err := s.Send(context.Background(), record(7))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// Any other trouble on the way says what to do, too; and no other server's 200 is taken for ours.
func TestTroubleOnTheWay(t *testing.T) {
	client := must.Get(NewClient(""))(t)
	defer client.CloseIdleConnections()
	enough := make(chan struct{})
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/moved"):
			http.Redirect(w, r, "https://head:9797/", http.StatusPermanentRedirect)
		case strings.HasPrefix(r.URL.Path, "/slow"):
			<-enough
		case strings.HasPrefix(r.URL.Path, "/none"):
			http.NotFound(w, r)
		case strings.HasPrefix(r.URL.Path, "/large"):
			w.WriteHeader(http.StatusRequestEntityTooLarge)
		case strings.HasPrefix(r.URL.Path, "/bad"):
			w.WriteHeader(http.StatusUnprocessableEntity)
		}
	}))
	defer other.Close()
	defer close(enough)
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, c := range []struct{ name, url, want string }{
		{"nobody there", gone.URL, "connection refused: is slurmbridge serve running there"},
		{"too slow", other.URL + "/slow", "is slurmbridge serve running there"},
		{"another server", other.URL, "another program"},
		{"no such page", other.URL + "/none", "another program"},
		{"moved", other.URL + "/moved", `"https://head:9797/"`},
		{"too large for a proxy", other.URL + "/large", "another program"},
		{"another program's refusal", other.URL + "/bad", "another program"},
	} {
		s := &Sender{URL: c.url, Credentials: &fake{}, Client: client}
		if c.name == "too slow" {
			s.Timeout = 50 * time.Millisecond
		}
		if err := s.Send(context.Background(), record(7)); !strings.Contains(fmt.Sprint(err), c.want) ||
			errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	s := &Sender{URL: other.URL, Credentials: &credential.Munge{Bin: t.TempDir()}, Client: client}
	must.Fail(t, s.Send(context.Background(), record(7)), "systemctl status munge", "no munged")
	s = &Sender{URL: other.URL, Credentials: credential.NewKey(filepath.Join(t.TempDir(), "none")), Client: client}
	must.Fail(t, s.Send(context.Background(), record(7)), "key_file", "no key")
}

func TestBadSettings(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"unknown": "tls_confg:\n  ca_file: ca.pem\n", "missing": "tls_config:\n  ca_file: none.pem\n",
		"half": "tls_config:\n  cert_file: a.pem\n",
	} {
		file := filepath.Join(dir, name)
		write(t, file, text)
		must.Fail(t, must.Err(NewClient(file)), "", name)
	}
	must.Fail(t, must.Err(NewClient(filepath.Join(dir, "none"))), "", "a file that isn't there")
}

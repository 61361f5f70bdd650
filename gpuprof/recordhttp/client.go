package recordhttp

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/common/config"
)

// NewClient makes the client of a Sender. file ("" = none) says how to verify the controller and
// how to authenticate: Prometheus's format for HTTP clients (tls_config with ca_file, cert_file,
// key_file and server_name, basic_auth, proxy_url). Names in it are relative to its folder.
// Certificates that change on disk are read again.
func NewClient(file string) (*http.Client, error) {
	cfg := &config.HTTPClientConfig{}
	if file != "" {
		text, err := os.ReadFile(filepath.Clean(file))
		if err != nil {
			return nil, err
		}
		if cfg, err = config.LoadHTTPConfig(string(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		cfg.SetDirectory(filepath.Dir(file))
	}
	cfg.FollowRedirects = false // a credential is for the controller only
	cfg.EnableHTTP2 = false     // one record at a time, and errors that say more
	c, err := config.NewClientFromConfig(*cfg, "controller", config.WithIdleConnTimeout(time.Minute))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// advise adds to an error on the way to the controller what to do about it.
func advise(err error) error {
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var dns *net.DNSError
	var op *net.OpError
	var at *url.Error
	cut := errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	advice := ""
	switch {
	case errors.As(err, &unknown):
		advice = "name the authority that signed the controller's certificate as ca_file under tls_config in the file that controller_config names"
	case errors.As(err, &name):
		advice = "use a name that is in the certificate in the setting controller, or give one as server_name under tls_config in the file that controller_config names"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		advice = "renew the controller's certificate, or set this node's clock"
	case errors.Is(err, http.ErrSchemeMismatch):
		advice = "the controller doesn't speak TLS: the setting controller begins with http://, or its web_config names a certificate"
	case strings.Contains(err.Error(), "remote error: tls: "), cut && errors.As(err, &at) && strings.HasPrefix(at.URL, "https:"):
		// The alert itself can get lost when the connection ends.
		advice = "does the controller's web_config want a certificate of this node? Then name cert_file and key_file under tls_config in the file that controller_config names"
	case errors.As(err, &dns):
		advice = "is the name in the setting controller right?"
	case errors.As(err, &op) && op.Op == "dial", errors.Is(err, os.ErrDeadlineExceeded), os.IsTimeout(err):
		advice = "is slurmbridge serve running there, and does a firewall let this node in? See the setting controller"
	default:
		return err
	}
	return fmt.Errorf("%w: %s", err, advice)
}

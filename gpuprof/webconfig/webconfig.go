// Package webconfig serves a daemon's address, protected as a file in the format of Prometheus's exporters says, which
// it checks before the daemon uses it.
package webconfig

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v3"
	"golang.org/x/sync/errgroup"
)

// Serve has g answer on a listener until ctx ends; requests have five seconds then. address names it in errors.
func Serve(ctx context.Context, g *errgroup.Group, l net.Listener, srv *http.Server, address, file string,
	log *slog.Logger,
) {
	g.Go(func() error {
		systemd := false
		err := web.Serve(l, srv, &web.FlagConfig{
			WebListenAddresses: &[]string{address}, WebSystemdSocket: &systemd, WebConfigFile: &file,
		}, log)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve %s: %w", address, err)
	})
	g.Go(func() error {
		<-ctx.Done()
		sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if srv.Shutdown(sctx) != nil {
			return srv.Close() // open connections don't keep the daemon
		}
		return nil
	})
}

// Check says what is wrong with a file, nil = nothing: it is read and makes sense, what
// it names is there, and its certificate is valid now. "" is no file.
func Check(file string, now time.Time) error {
	if file == "" {
		return nil
	}
	if err := web.Validate(file); err != nil {
		return err
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var c web.Config
	if err := yaml.Unmarshal(text, &c); err != nil {
		return err
	}
	c.TLSConfig.SetDirectory(filepath.Dir(file))
	chain, where := []byte(c.TLSConfig.TLSCert), file
	if c.TLSConfig.TLSCertPath != "" {
		where = c.TLSConfig.TLSCertPath
		if chain, err = os.ReadFile(where); err != nil {
			return err
		}
	}
	for len(chain) > 0 {
		var block *pem.Block
		if block, chain = pem.Decode(chain); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return fmt.Errorf("%s: %w", where, err)
		}
		switch {
		case now.After(cert.NotAfter):
			return fmt.Errorf("the certificate in %s expired at %s: renew it", where, cert.NotAfter.UTC().Format(time.RFC3339))
		case now.Before(cert.NotBefore):
			return fmt.Errorf("the certificate in %s is valid from %s on only: is the clock right?", where,
				cert.NotBefore.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

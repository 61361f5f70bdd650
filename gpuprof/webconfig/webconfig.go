// Package webconfig serves a daemon's address, protected as a file in the format of Prometheus's exporters says.
package webconfig

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
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

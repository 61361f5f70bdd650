package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/slurmbridge"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/wake"
)

func newServe(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the controller's daemon",
		Long: `serve runs beside slurmctld as SlurmUser: it keeps the gate, plans, and takes the
nodes' records. It looks when something happened (a line in wake_file, a record)
and every poll at the latest.

Policies: ` + strings.Join(policyNames(), ", ") + `.

SIGHUP reads the configuration again; if that fails the old one stays. SIGTERM ends
the daemon and leaves the gate to its lease: a daemon that starts within it goes on
where this one was, and without one every waiting job is let go.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.serve(c) },
	}
	config.Flags(c.Flags())
	return c
}

// serve runs the daemon until it is told to end. Each SIGHUP with a sound
// configuration starts it anew within the same process, sockets kept.
func (s *shared) serve(c *cobra.Command) error {
	cfg, err := s.load(c)
	if err != nil {
		return err
	}
	listener, err := listen(cfg.Listen)
	if err != nil {
		return err
	}
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	for {
		ctx, cancel := context.WithCancel(c.Context())
		done := make(chan error, 1)
		go func() { done <- s.serveOnce(ctx, cfg, listener) }()
		next, err := s.wait(ctx, c, hup, done, cfg)
		cancel()
		if next == nil {
			notify(logger(s, cfg), daemon.SdNotifyStopping)
			return err
		}
		if err := <-done; err != nil {
			return err
		}
		if next.Listen != cfg.Listen {
			if listener, err = listen(next.Listen); err != nil {
				return err
			}
		} else if listener, err = relisten(cfg.Listen); err != nil {
			return err
		}
		cfg = next
	}
}

// wait returns when the daemon has ended (nil, its error) or is to run with other
// settings.
func (s *shared) wait(ctx context.Context, c *cobra.Command, hup <-chan os.Signal, done <-chan error, cfg *config.Config) (*config.Config, error) {
	log := logger(s, cfg)
	for {
		select {
		case err := <-done:
			return nil, err
		case <-hup:
			next, err := config.Load(s.file, c.Flags())
			if err != nil {
				log.Error("configuration not read again; the old one stays", "err", err)
				continue
			}
			if _, err := newPolicy(next, nil); err != nil {
				log.Error("configuration not read again; the old one stays", "err", err)
				continue
			}
			log.Info("configuration read again", "file", next.File)
			return next, nil
		case <-ctx.Done():
			return nil, <-done
		}
	}
}

// listen takes systemd's socket where there is one.
func listen(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	if ls, err := activation.Listeners(); err == nil && len(ls) > 0 && ls[0] != nil {
		return ls[0], nil
	}
	return relisten(addr)
}

func relisten(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	var l net.Listener
	var err error
	// The socket of the run before may take a moment to go.
	for range 50 {
		if l, err = net.Listen("tcp", addr); err == nil {
			return l, nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	return nil, usageError{fmt.Errorf("listen: %w", err)}
}

func logger(s *shared, cfg *config.Config) *slog.Logger {
	var level slog.Level
	// The configuration has checked it.
	_ = level.UnmarshalText([]byte(cfg.LogLevel))
	opts := &slog.HandlerOptions{Level: level}
	if os.Getenv("JOURNAL_STREAM") != "" {
		// journald adds the time itself.
		opts.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey && len(groups) == 0 {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(slog.NewTextHandler(s.errOut, opts))
}

// serveOnce runs the daemon with one configuration.
func (s *shared) serveOnce(ctx context.Context, cfg *config.Config, listener net.Listener) error {
	log := logger(s, cfg)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	metrics := slurmbridge.NewMetrics(reg)
	w, err := wire(ctx, cfg, s.errOut, metrics)
	if err != nil {
		return err
	}
	defer w.close()
	b := w.bridge
	b.Log = log
	if b.Mode == slurmbridge.Shadow {
		// A gate file left by an active daemon would gate jobs nobody looks after.
		if err := slurmbridge.RemoveGateFile(cfg.GateFile); err != nil {
			log.Warn("gate file", "err", err)
		}
	}
	api := &httpapi.Server{
		Status: b.Status, Story: w.journal.Story, Groups: w.journal.Groups, Fresh: 3 * cfg.Poll,
		Now: time.Now, Gatherer: reg,
	}
	mux := api.Handler()
	if err := w.records(ctx, mux, cfg, metrics, log); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	if listener != nil {
		srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute}
		g.Go(func() error {
			systemd := false
			err := web.Serve(listener, srv, &web.FlagConfig{WebListenAddresses: &[]string{cfg.Listen}, WebSystemdSocket: &systemd, WebConfigFile: &cfg.WebConfig}, log)
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return fmt.Errorf("serve %s: %w", cfg.Listen, err)
		})
		g.Go(func() error {
			<-ctx.Done()
			sctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			return srv.Shutdown(sctx)
		})
	}
	g.Go(func() error {
		err := wake.File(ctx, cfg.WakeFile, b.Wake)
		if err != nil && ctx.Err() == nil {
			// Polling goes on without it.
			log.Error("events are lost; only polling is left", "err", err)
			return nil
		}
		return nil
	})
	g.Go(func() error {
		ready := false
		err := b.Run(ctx, func() {
			if !ready {
				ready = true
				notify(log, daemon.SdNotifyReady)
				log.Info("ready", "mode", cfg.Mode, "policy", cfg.Policy, "version", version)
			}
			notify(log, daemon.SdNotifyWatchdog)
		})
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	g.Go(func() error { return w.tidy(ctx, log) })
	return g.Wait()
}

// notify tells systemd; without systemd nobody listens.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Debug("sd_notify", "err", err)
	}
}

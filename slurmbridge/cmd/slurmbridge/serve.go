package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
)

func newServe(s *shared) *cobra.Command {
	c := &cobra.Command{
		Use:   "serve",
		Short: "Run the controller's daemon",
		Long: `serve runs next to slurmctld as SlurmUser: it keeps the gate, plans, and takes the
nodes' records. It polls Slurm after an event (a line in wake_file, a record), and once
every poll in any case.

Policies:
` + policyList() + `

SIGHUP reads the configuration again; if a setting of it is invalid, the old configuration
stays, and the log names the setting. SIGTERM ends the daemon and leaves the gate to its
lease: a daemon that starts within the lease continues where this one was; otherwise every
waiting job is ungated.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return s.serve(c) },
	}
	config.Flags(c.Flags())
	return c
}

// policyList describes the policies that the setting takes, a line each.
func policyList() string {
	var b strings.Builder
	for _, p := range policy.Live() {
		fmt.Fprintf(&b, "  %-10s %s\n", p.Name, p.About)
	}
	return b.String()
}

// serve runs the daemon until a signal ends it. Each SIGHUP with a valid configuration restarts it
// within the same process and keeps its sockets.
func (s *shared) serve(c *cobra.Command) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	cfg, err := s.Load(c)
	if err != nil {
		return err
	}
	cur, err := s.build(c.Context(), cfg, nil)
	if err != nil {
		return err
	}
	for {
		ctx, cancel := context.WithCancel(c.Context())
		done := make(chan error, 1)
		go func() { done <- cur.run(ctx) }()
		next, err := s.wait(ctx, c, hup, done, cur)
		cancel()
		if next == nil {
			notify(cur.log, daemon.SdNotifyStopping)
			cur.close(nil)
			return err
		}
		if err := <-done; err != nil {
			next.log.Warn("the old settings' daemon did not end well", "err", err)
		}
		cur.close(next)
		cur = next
	}
}

// wait returns when the daemon has ended (nil, its error), or when another one with new settings is
// ready to replace it.
func (s *shared) wait(ctx context.Context, c *cobra.Command, hup <-chan os.Signal, done <-chan error, cur *service) (*service, error) {
	for {
		select {
		case err := <-done:
			return nil, err
		case <-hup:
			cfg, err := config.Load(s.File, c.Flags())
			var next *service
			if err == nil {
				next, err = s.build(ctx, cfg, cur)
			}
			if err != nil {
				cur.log.Error("configuration not read again; the old one stays", "err", err)
				continue
			}
			next.log.Info("configuration read again", "file", cfg.File)
			return next, nil
		case <-ctx.Done():
			return nil, <-done
		}
	}
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
	return slog.New(slog.NewTextHandler(s.ErrOut, opts))
}

// notify reports to systemd, where it runs.
func notify(log *slog.Logger, state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		log.Debug("sd_notify", "err", err)
	}
}

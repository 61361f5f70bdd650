package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/gpuprof/webconfig"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
	"github.com/slurmbridge/slurmbridge/slurmbridge/httpapi"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/wake"
)

func newServe(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "serve",
		Short: "Run the controller's daemon",
		Long: `serve runs next to slurmctld as SlurmUser: it keeps the gate, plans, and takes the
nodes' records. It polls Slurm after an event (a line in the wake file of run_dir, a record), and once
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
}

func newCheckConfig(s *shared) *cobra.Command {
	return &cobra.Command{
		Use:   "check-config",
		Short: "Whether the settings make sense, before a reload",
		Long: `check-config reads the settings as the daemon would, and says in a line what is wrong with
each that is: file, line and setting. It changes nothing and asks nobody. systemctl reload
slurmbridge calls it first: a reload of settings that make no sense fails, and says so.

Exit status: 0 all is right, 2 there are mistakes.`,
		Args: cobra.NoArgs,
		RunE: s.Configured(func(_ *cobra.Command, cfg *config.Config, _ []string) error {
			if _, err := checked(cfg); err != nil {
				return err
			}
			if _, err := newPolicies(cfg, interference.New(&contention.MPS), s.Log()); err != nil {
				return err
			}
			file := cmp.Or(cfg.File, "no file: all settings have their defaults")
			return s.Show(map[string]string{"file": cfg.File}, func() { s.printf("%s: all settings make sense\n", file) })
		}),
	}
}

func policyList() string {
	var b strings.Builder
	for _, p := range policy.Live() {
		fmt.Fprintf(&b, "  %-12s %s\n", p.Name, p.About)
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
			cur.log.Info("ending: the gate opens by itself when its lease is over", "err", err)
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
func (s *shared) wait(ctx context.Context, c *cobra.Command, hup <-chan os.Signal, done <-chan error,
	cur *service,
) (*service, error) {
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

// service is the daemon with one configuration. Building it tries everything that can fail about its settings.
type service struct {
	cfg     *config.Config
	log     *slog.Logger
	wired   *wired
	handler http.Handler
	// listener is nil where nothing is served. It only holds the address: each run
	// accepts on a duplicate, so that no connection is refused between two runs.
	listener net.Listener
}

// checked looks at what settings name: the web configuration and users. It returns the users that may send records.
func checked(cfg *config.Config) (recordUIDs []uint32, err error) {
	if err := web.Validate(cfg.WebConfig); err != nil {
		return nil, cli.Usage(fmt.Errorf("%s: %w", cfg.Where("web_config"), err))
	}
	return recordUsers(cfg)
}

// build makes the daemon of a configuration and disturbs none that runs: what both have, address and database, is taken
// over from old (nil = there is none). An error names the setting, and leaves nothing open but what is old's.
func (s *shared) build(ctx context.Context, cfg *config.Config, old *service) (_ *service, err error) {
	v := &service{cfg: cfg, log: logger(s, cfg)}
	defer func() {
		if err != nil {
			v.close(old)
		}
	}()
	allowed, err := checked(cfg)
	if err != nil {
		return nil, err
	}
	if old != nil && old.cfg.Listen == cfg.Listen {
		v.listener = old.listener
	} else if v.listener, err = listen(cfg); err != nil {
		if old != nil && errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w; where this daemon itself has the port, another host takes a restart", err)
		}
		return nil, err
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Namespace: "slurmbridge", Name: "build_info", Help: "Always 1; says which version of slurmbridge runs.",
		ConstLabels: prometheus.Labels{"version": version},
	}).Set(1)
	metrics := loop.NewMetrics(reg)
	if v.wired, err = wire(ctx, cfg, v.log, metrics, func() (*store.Store, error) {
		if old != nil && old.cfg.Database == cfg.Database {
			// A file that is open twice in one process loses its locks when either is closed.
			return old.wired.store, nil
		}
		return cli.OwnStore(ctx, cfg, v.log)
	}); err != nil {
		return nil, err
	}
	b := v.wired.bridge
	how := credential.Choose(cfg.KeyFile, cfg.MungeSocket)
	if cfg.KeyFile != "" {
		if _, err := credential.ReadKeys(cfg.KeyFile); err != nil {
			v.log.Error("no record can be believed", "setting", cfg.Where("key_file"), "err", err)
		}
	}
	api := &httpapi.Server{
		Status: b.Status, Story: v.wired.journal.Story, Groups: v.wired.journal.Groups, Fresh: b.Fresh(),
		Now: time.Now, Gatherer: reg, Runs: past(v.wired.store).Runs, Owner: v.wired.store.OwnerOf, Usage: v.wired.usage,
		TaskName: past(v.wired.store).TaskName, Profiles: v.wired.store.Listing,
		Asker: asker(how.Users, allowed), Nodes: asker(how.Nodes, allowed), Memory: v.wired.archive.MemoryLimit,
	}
	records := &recordhttp.Handler{
		Credentials: how.Nodes, AllowUID: func(uid uint32) bool { return slices.Contains(allowed, uid) },
		Result: metrics.Record, Metrics: recordhttp.NewMetrics(reg), Log: v.log,
		Keep: func(ctx context.Context, r *gpuprof.Record, behind time.Duration) (bool, error) {
			isNew, err := v.wired.keep(ctx, r, behind, metrics)
			if err != nil {
				v.log.Error("record not kept", "job", r.Ref(), "err", err)
			}
			return isNew, err
		},
	}
	mux := api.Handler()
	mux.Handle("POST "+recordhttp.Path, records)
	mux.Handle("POST "+recordhttp.IdlePath, records.Idle(b.TakeIdle))
	v.handler = mux
	return v, nil
}

// close ends what belongs to the service alone; other (nil = none) keeps the rest.
func (v *service) close(other *service) {
	if v.listener != nil && (other == nil || other.listener != v.listener) {
		_ = v.listener.Close() // it is not in use
	}
	if v.wired != nil && (other == nil || other.wired.store != v.wired.store) {
		_ = v.wired.store.Close() // at the end there is nothing left to do about it
	}
}

// listen takes systemd's socket where there is one; nil where nothing is served.
func listen(cfg *config.Config) (net.Listener, error) {
	if cfg.Listen == "" {
		return nil, nil
	}
	if ls, err := activation.Listeners(); err == nil && len(ls) > 0 && ls[0] != nil {
		return ls[0], nil
	}
	l, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return nil, cli.Usage(fmt.Errorf("%s: %w", cfg.Where("listen"), err))
	}
	return l, nil
}

// duplicate makes a second listener of the same socket.
func duplicate(l net.Listener) (net.Listener, error) {
	filer, ok := l.(interface{ File() (*os.File, error) })
	if !ok {
		return nil, fmt.Errorf("a %T can't be duplicated", l)
	}
	f, err := filer.File()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return net.FileListener(f)
}

func (v *service) run(ctx context.Context) error {
	b := v.wired.bridge
	if b.Mode == job.Shadow {
		// A gate file left by an active daemon would gate jobs that no bridge releases.
		if err := loop.CloseGateFile(v.cfg.GateFile()); err != nil {
			v.log.Warn("gate file", "err", err)
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	if v.listener != nil {
		l, err := duplicate(v.listener)
		if err != nil {
			return fmt.Errorf("serve %s: %w", v.cfg.Listen, err)
		}
		webconfig.Serve(ctx, g, l, httpapi.NewServer(v.handler, v.log), v.cfg.Listen, v.cfg.WebConfig, v.log)
	}
	g.Go(func() error {
		err := wake.File(ctx, v.cfg.WakeFile(), b.Wake)
		if err != nil && ctx.Err() == nil {
			// Polling continues without it.
			v.log.Error("events are lost; only polling is left", "err", err)
		}
		return nil
	})
	g.Go(func() error {
		ready := false
		err := b.Run(ctx, func(err error) {
			if !ready && err == nil {
				ready = true
				notify(v.log, daemon.SdNotifyReady)
				v.log.Info("ready", "mode", v.cfg.Mode, "policy", v.cfg.Policy, "version", version)
			}
			// A slurmctld that is away is nothing that a new daemon could mend: the loop goes
			// round, and that is what the watchdog is to know.
			notify(v.log, daemon.SdNotifyWatchdog)
		})
		if errors.Is(err, context.Canceled) {
			return nil
		}
		return err
	})
	g.Go(func() error { return v.wired.tidy(ctx, int64(v.cfg.DatabaseMiB)<<20, v.log) })
	return g.Wait()
}

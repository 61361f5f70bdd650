package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/etc/settings"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/gpuprof/spool"
	"github.com/slurmbridge/slurmbridge/gpuprof/webconfig"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

func newServe(errOut io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use: "serve", Short: "Run the node agent", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			cfg, err := load(c)
			if err != nil {
				return err
			}
			return serve(c.Context(), cfg, errOut)
		},
	}
	settings.Flags[config](c.Flags(), settings.Source{Defaults: etc.Agent})
	return c
}

func serve(ctx context.Context, cfg *config, errOut io.Writer) error {
	log := logger(cfg, errOut)
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ways, err := newWays(cfg, reg, log)
	if err != nil {
		return err
	}
	if err := web.Validate(cfg.WebConfig); err != nil {
		return fmt.Errorf("web-config: %w", err)
	}
	lib, err := nvml.Open(cfg.NVMLLibrary)
	if err != nil {
		return err
	}
	defer lib.Close()
	node := cfg.Node
	if node == "" {
		if node, err = os.Hostname(); err != nil {
			return err
		}
		node, _, _ = strings.Cut(node, ".")
	}
	for _, w := range ways {
		if err := w.Open(); err != nil {
			return err
		}
	}
	a := &agent.Agent{
		Driver: lib, Dir: prolog.Dir(cfg.RunDir), Devices: lib.Devices(), Node: node, Period: cfg.Period,
		Keep: ways.add, Now: time.Now, Log: log, Metrics: agent.NewMetrics(reg),
	}
	if cfg.DCGM != "" {
		if _, err := prolog.Addresses(cfg.DCGM); err != nil {
			return fmt.Errorf("dcgm_metrics: %w", err)
		}
		a.DCGM = &agent.DCGM{URL: cfg.DCGM, Now: time.Now}
	}
	agent.ShowHooks(reg, cfg.HookSettings, node)
	if _, err := prolog.Load(cfg.HookSettings); err != nil {
		log.Warn("the hooks go by defaults where their settings make no sense", "err", err)
	}
	if err := a.Start(); err != nil {
		return err
	}
	promauto.With(reg).NewGauge(prometheus.GaugeOpts{
		Namespace: "gpuprof", Name: "build_info", Help: "Always 1; says which version of gpuprof runs.",
		ConstLabels: prometheus.Labels{"version": version},
	}).Set(1)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(ctx) })
	for _, w := range ways {
		g.Go(func() error { return w.Run(ctx) })
	}
	g.Go(func() error { return a.TellIdle(ctx, ways.sendIdle) })
	if cfg.Listen != "" {
		g.Go(func() error {
			l, err := listen(ctx, cfg.Listen, log)
			if err != nil {
				return err
			}
			webconfig.Serve(ctx, g, l, &http.Server{
				Handler: handler(reg, a.Health), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
				WriteTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
				// A handshake that failed is the other side's matter.
				ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
			}, cfg.Listen, cfg.WebConfig, log)
			return nil
		})
	}
	log.Info("ready", "gpus", len(lib.Devices()), "period", cfg.Period, "controller", cfg.Controller, "version", version)
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Debug("sd_notify", "err", err)
	}
	err = g.Wait()
	log.Info("ended", "err", err)
	return err
}

// listen waits for the address of the metrics while another program has it, a user's job perhaps: jobs are recorded
// meanwhile.
func listen(ctx context.Context, address string, log *slog.Logger) (net.Listener, error) {
	for first := true; ; first = false {
		l, err := net.Listen("tcp", address)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		if first {
			log.Error("no metrics are shown until the address is free", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// way brings records to one controller.
type way struct {
	*spool.Spool
	sender *recordhttp.Sender
}

// ways bring each record to each controller: where one is down, its records wait for it alone.
type ways []way

func (all ways) add(r *gpuprof.Record) error {
	var errs []error
	for _, w := range all {
		errs = append(errs, w.Add(r))
	}
	return errors.Join(errs...)
}

func (all ways) sendIdle(ctx context.Context, r *gpuprof.IdleReport) error {
	var errs []error
	for _, w := range all {
		errs = append(errs, w.sender.SendIdle(ctx, r))
	}
	return errors.Join(errs...)
}

// newWays makes what brings records to the controllers; nothing is written yet. The metrics are the first one's.
func newWays(cfg *config, reg *prometheus.Registry, log *slog.Logger) (ways, error) {
	if cfg.Controller == "" {
		return nil, errors.New("controller is not set: name it with --controller http://HEAD:9797 or in " + defaultFile)
	}
	controllers, err := prolog.Addresses(cfg.Controller)
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	client, err := recordhttp.NewClient(cfg.ControllerConfig)
	if err != nil {
		return nil, fmt.Errorf("controller-config: %w", err)
	}
	if cfg.KeyFile != "" {
		if _, err := credential.ReadKeys(cfg.KeyFile); err != nil {
			log.Error("records can't be signed, and wait", "err", err)
		}
	}
	how := credential.Choose(cfg.KeyFile, cfg.MungeSocket).Nodes
	var out ways
	for i, u := range controllers {
		dir, reg, log := cfg.Spool, reg, log
		if i > 0 { // what waits for another than the first has a folder of its own
			dir = filepath.Join(dir, "for-"+strings.ReplaceAll(u.Host, ":", "-"))
			reg, log = prometheus.NewRegistry(), log.With("controller", u.Host)
		}
		sender := &recordhttp.Sender{URL: u.String(), Credentials: how, Client: client}
		out = append(out, way{&spool.Spool{
			Dir: dir, Limit: int64(cfg.SpoolMiB) << 20, Send: sender.Send, Log: log, Metrics: spool.NewMetrics(reg),
		}, sender})
	}
	return out, nil
}

func handler(reg prometheus.Gatherer, health func() error) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{}))
	for _, p := range []string{"healthy", "ready"} {
		mux.HandleFunc("GET /-/"+p, func(w http.ResponseWriter, _ *http.Request) {
			if err := health(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, p)
		})
	}
	return mux
}

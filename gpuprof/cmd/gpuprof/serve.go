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
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/cobra"
	"github.com/spf13/viper"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/gpuprof/spool"
	"github.com/slurmbridge/slurmbridge/gpuprof/webconfig"
	"github.com/slurmbridge/slurmbridge/prolog"
	"github.com/slurmbridge/slurmbridge/prolog/credential"
)

func newServe(errOut io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use: "serve", Short: "Run the node agent", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v, err := settings(c)
			if err != nil {
				return err
			}
			return serve(c.Context(), v, errOut)
		},
	}
	f := c.Flags()
	f.String("run-dir", prolog.DefaultRunDir, "where the hooks keep the jobs' files")
	f.String("spool", "/var/spool/slurmbridge", "where records wait for the controller")
	f.Int64("spool-mib", 256, "size of the spool from which on series are dropped, MiB")
	f.String("controller", "", "the controller, e.g. http://head:9797, or several with commas between them: each gets every record (needed)")
	f.String("controller-config", "", "how the controller is trusted and what it is shown, a file in the format of Prometheus's HTTP clients")
	f.Duration("period", time.Second, "time between two samples")
	f.String("node", "", "this node's name in Slurm (default: the host's)")
	f.String("listen", ":9798", "address for metrics; empty: none")
	f.String("web-config", "", "TLS and passwords of that address, a file in the format of Prometheus's exporters")
	f.String("hook-settings", prolog.DefaultSettings, "the hooks' settings; a metric says whether they make sense")
	f.String("munge-socket", "", "munged's socket (default: munge's own)")
	f.String("key-file", "", "file of the key that signs records where there is no MUNGE")
	return c
}

func serve(ctx context.Context, v *viper.Viper, errOut io.Writer) error {
	log, err := logger(v, errOut)
	if err != nil {
		return err
	}
	letGo := make(chan os.Signal, 1)
	signal.Notify(letGo, syscall.SIGHUP)
	defer signal.Stop(letGo)
	if p := v.GetDuration("period"); p < 5*time.Millisecond || p > time.Minute {
		return fmt.Errorf("period %v is not from 5ms to 1m", p)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	ways, err := newWays(v, reg, log)
	if err != nil {
		return err
	}
	l, err := listen(v)
	if err != nil {
		return err
	}
	if l != nil {
		defer l.Close()
	}
	lib, err := nvml.Open(v.GetString("nvml-library"))
	if err != nil {
		return err
	}
	defer lib.Close()
	node := v.GetString("node")
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
		Driver: lib, LetGo: letGo,
		Dir: prolog.Dir(v.GetString("run-dir")), Devices: lib.Devices(), Node: node, Period: v.GetDuration("period"),
		Keep: ways.add, Now: time.Now, Log: log, Metrics: agent.NewMetrics(reg),
	}
	agent.ShowHooks(reg, v.GetString("hook-settings"), node)
	agent.ShowContainers(reg, "/")
	if _, err := prolog.Load(v.GetString("hook-settings")); err != nil {
		log.Warn("the hooks go by defaults where their settings make no sense", "err", err)
	}
	if err := a.Start(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(ctx) })
	for _, w := range ways {
		g.Go(func() error { return w.Run(ctx) })
	}
	g.Go(func() error { return a.TellIdle(ctx, ways.sendIdle) })
	if l != nil {
		show(ctx, g, l, v, handler(reg, a.Health), log)
	}
	log.Info("ready", "gpus", len(lib.Devices()), "period", v.GetDuration("period"), "controller", v.GetString("controller"), "waiting", ways.waiting(), "version", version)
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Debug("sd_notify", "err", err)
	}
	return g.Wait()
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

// waiting is how many records wait for the controller that has most to get.
func (all ways) waiting() int {
	n := 0
	for _, w := range all {
		n = max(n, w.Waiting())
	}
	return n
}

// newWays makes what brings records to the controllers; nothing is written yet. The metrics are the first one's.
func newWays(v *viper.Viper, reg prometheus.Registerer, log *slog.Logger) (ways, error) {
	if v.GetString("controller") == "" {
		return nil, errors.New("controller is not set: name it with --controller http://HEAD:9797 or in " + defaultFile)
	}
	controllers, err := prolog.Addresses(v.GetString("controller"))
	if err != nil {
		return nil, fmt.Errorf("controller: %w", err)
	}
	var out ways
	for _, u := range controllers {
		log, sub := log, ""
		if len(out) > 0 {
			reg, sub = prometheus.NewRegistry(), "for-"+strings.ReplaceAll(u.Host, ":", "-")
			log = log.With("controller", u.Host)
		}
		w, err := newWay(v, u.String(), sub, reg, log)
		if err != nil {
			return nil, err
		}
		out = append(out, w)
	}
	return out, nil
}

// newWay keeps what waits for a controller in a folder of its own below the spool, "" = the spool itself.
func newWay(v *viper.Viper, to, sub string, reg prometheus.Registerer, log *slog.Logger) (w way, err error) {
	client, err := recordhttp.NewClient(v.GetString("controller-config"))
	if err != nil {
		return w, fmt.Errorf("controller-config: %w", err)
	}
	mib := v.GetInt64("spool-mib")
	if mib < 1 || mib > 1<<20 {
		return w, fmt.Errorf("spool-mib %d is not from 1 to %d", mib, 1<<20)
	}
	if file := v.GetString("key-file"); file != "" {
		if _, err := credential.ReadKeys(file); err != nil {
			log.Error("records can't be signed, and wait", "err", err)
		}
	}
	how := credential.Choose(v.GetString("key-file"), v.GetString("munge-socket")).Nodes
	sender := &recordhttp.Sender{URL: to, Credentials: how, Client: client}
	return way{&spool.Spool{
		// The run directory is in memory, and outlives the agent.
		Dir: filepath.Join(v.GetString("spool"), sub), Spare: filepath.Join(v.GetString("run-dir"), "spool", sub), Limit: mib << 20,
		Send: sender.Send, Log: log, Metrics: spool.NewMetrics(reg),
	}, sender}, nil
}

// listen opens the address for metrics; nil = there is none.
func listen(v *viper.Viper) (net.Listener, error) {
	if err := webconfig.Check(v.GetString("web-config"), time.Now()); err != nil {
		return nil, fmt.Errorf("web-config: %w", err)
	}
	addr := v.GetString("listen")
	if addr == "" {
		return nil, nil
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return l, nil
}

// show serves h on l until ctx ends.
func show(ctx context.Context, g *errgroup.Group, l net.Listener, v *viper.Viper, h http.Handler, log *slog.Logger) {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		// A handshake that failed is the other side's matter.
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	webConfig, systemd := v.GetString("web-config"), false
	g.Go(func() error {
		err := web.Serve(l, srv, &web.FlagConfig{WebListenAddresses: &[]string{v.GetString("listen")}, WebSystemdSocket: &systemd, WebConfigFile: &webConfig}, log)
		if errors.Is(err, http.ErrServerClosed) {
			return nil
		}
		return fmt.Errorf("serve %s: %w", v.GetString("listen"), err)
	})
	g.Go(func() error { <-ctx.Done(); return srv.Close() })
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

// Command gpuprof is the node agent: it records what each job uses of its GPUs
// and sends it to the controller.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"golang.org/x/sync/errgroup"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/agent"
	"github.com/slurmbridge/slurmbridge/gpuprof/munge"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/gpuprof/recordhttp"
	"github.com/slurmbridge/slurmbridge/gpuprof/spool"
	"github.com/slurmbridge/slurmbridge/prolog"
)

var version = "unknown"

const defaultFile = "/etc/slurmbridge/gpuprof.yaml"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := newRoot(os.Stdout, os.Stderr).ExecuteContext(ctx); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "gpuprof:", err)
		os.Exit(1)
	}
}

func newRoot(out, errOut io.Writer) *cobra.Command {
	root := &cobra.Command{
		Use:   "gpuprof",
		Short: "Record what each job uses of its GPUs",
		Long: `gpuprof runs on each node with GPUs, as root. The prolog tells it of a job; it reads
the job's GPU through NVML while the job runs, and at the epilog sends a record to
the controller (slurmbridge serve), signed with MUNGE. Records wait on disk until
the controller has them.

Settings come from ` + defaultFile + `, from GPUPROF_* and from flags.`,
		Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.PersistentFlags().StringP("config", "c", "", "configuration file (default "+defaultFile+" where it exists)")
	root.PersistentFlags().String("nvml-library", "", "path of libnvidia-ml.so.1 (default: wherever the loader finds it)")
	root.PersistentFlags().String("log-level", "info", "debug, info, warn or error")
	root.AddCommand(newServe(errOut), newInfo(out), newWatch(out))
	return root
}

// settings reads file, variables and flags; a key that is no flag of the command
// is an error that names it.
func settings(c *cobra.Command) (*viper.Viper, error) {
	v := viper.New()
	v.SetEnvPrefix("GPUPROF")
	v.SetEnvKeyReplacer(strings.NewReplacer("-", "_", ".", "_"))
	v.AutomaticEnv()
	known := map[string]bool{}
	add := func(f *pflag.Flag) { known[strings.ReplaceAll(f.Name, "-", "_")] = true }
	c.Flags().VisitAll(add)
	c.InheritedFlags().VisitAll(add)
	if err := v.BindPFlags(c.Flags()); err != nil {
		return nil, err
	}
	file, _ := c.Flags().GetString("config")
	if file == "" {
		if _, err := os.Stat(defaultFile); err != nil {
			return v, nil
		}
		file = defaultFile
	}
	fv := viper.New()
	fv.SetConfigFile(file)
	fv.SetConfigType("yaml")
	if err := fv.ReadInConfig(); err != nil {
		return nil, fmt.Errorf("configuration can't be read: %s: %w", file, err)
	}
	for _, k := range fv.AllKeys() {
		if !known[k] || k == "config" {
			delete(known, "config")
			delete(known, "help")
			return nil, fmt.Errorf("%s: there is no setting %q; the settings are %s", file, k, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		flag := strings.ReplaceAll(k, "_", "-")
		if f := c.Flags().Lookup(flag); f != nil && !f.Changed && os.Getenv("GPUPROF_"+strings.ToUpper(k)) == "" {
			if err := f.Value.Set(fmt.Sprint(fv.Get(k))); err != nil {
				return nil, fmt.Errorf("%s: %s: %w", file, k, err)
			}
		}
	}
	return v, nil
}

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
	f.String("run-dir", prolog.DefaultRunDir, "where the hooks tell of jobs")
	f.String("spool", "/var/spool/slurmbridge", "where records wait for the controller")
	f.Int64("spool-mib", 256, "size of the spool from which on series are dropped, MiB")
	f.String("controller", "", "the controller, e.g. http://head:9797 (needed)")
	f.String("controller-config", "", "how the controller is trusted and what it is shown, a file in the format of Prometheus's HTTP clients: tls_config (ca_file, cert_file, key_file, server_name), basic_auth")
	f.Duration("period", time.Second, "time between two samples")
	f.String("node", "", "this node's name in Slurm (default: the host's)")
	f.String("listen", ":9798", "address for metrics; empty: none")
	f.String("web-config", "", "TLS and passwords of that address, a file in the format of Prometheus's exporters")
	f.String("munge-socket", "", "munged's socket (default: munge's own)")
	return c
}

func logger(v *viper.Viper, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(v.GetString("log-level"))); err != nil {
		return nil, fmt.Errorf("log-level: %w", err)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), nil
}

func serve(ctx context.Context, v *viper.Viper, errOut io.Writer) error {
	log, err := logger(v, errOut)
	if err != nil {
		return err
	}
	if v.GetString("controller") == "" {
		return errors.New("controller is not set: name it with --controller http://HEAD:9797 or in " + defaultFile)
	}
	if err := recordhttp.CheckURL(v.GetString("controller")); err != nil {
		return fmt.Errorf("controller: %w", err)
	}
	if p := v.GetDuration("period"); p < 5*time.Millisecond || p > time.Minute {
		return fmt.Errorf("period %v is not from 5ms to 1m", p)
	}
	lib, err := nvml.Open(v.GetString("nvml-library"))
	if err != nil {
		return fmt.Errorf("%w; is NVIDIA's driver loaded on this node (nvidia-smi)?", err)
	}
	defer lib.Close()
	node := v.GetString("node")
	if node == "" {
		if node, err = os.Hostname(); err != nil {
			return err
		}
		node, _, _ = strings.Cut(node, ".")
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	client, err := recordhttp.NewClient(v.GetString("controller-config"))
	if err != nil {
		return fmt.Errorf("controller-config: %w", err)
	}
	sender := &recordhttp.Sender{URL: v.GetString("controller"), Munge: &munge.Munge{Socket: v.GetString("munge-socket")}, Client: client}
	sp := &spool.Spool{Dir: v.GetString("spool"), Limit: v.GetInt64("spool-mib") << 20, Send: sender.Send, Log: log}
	if err := sp.Open(); err != nil {
		return err
	}
	reg.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "gpuprof", Name: "spool_records", Help: "Records that wait for the controller.",
	}, func() float64 { return float64(sp.Waiting()) }))
	a := &agent.Agent{
		Dir: prolog.Dir(v.GetString("run-dir")), Lib: lib, Node: node, Period: v.GetDuration("period"),
		Keep: func(r *gpuprof.Record) error { return sp.Add(r) }, Now: time.Now, Log: log, Metrics: agent.NewMetrics(reg),
	}
	if err := a.Start(); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.Run(ctx) })
	g.Go(func() error { return sp.Run(ctx) })
	if addr := v.GetString("listen"); addr != "" {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		srv := &http.Server{Handler: handler(reg, a.Health), ReadHeaderTimeout: 10 * time.Second}
		webConfig, systemd := v.GetString("web-config"), false
		g.Go(func() error {
			err := web.Serve(l, srv, &web.FlagConfig{WebListenAddresses: &[]string{addr}, WebSystemdSocket: &systemd, WebConfigFile: &webConfig}, log)
			if errors.Is(err, http.ErrServerClosed) {
				return nil
			}
			return err
		})
		g.Go(func() error { <-ctx.Done(); return srv.Close() })
	}
	log.Info("ready", "gpus", len(lib.Devices()), "period", v.GetDuration("period"), "controller", sender.URL, "version", version)
	if _, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		log.Debug("sd_notify", "err", err)
	}
	return g.Wait()
}

// handler serves metrics, and what health says.
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

func newWatch(out io.Writer) *cobra.Command {
	c := &cobra.Command{
		Use: "watch", Short: "Show what the GPUs and their jobs do, until interrupted", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			v, err := settings(c)
			if err != nil {
				return err
			}
			lib, err := nvml.Open(v.GetString("nvml-library"))
			if err != nil {
				return err
			}
			defer lib.Close()
			tick := time.NewTicker(v.GetDuration("period"))
			defer tick.Stop()
			for {
				jobs, err := prolog.List(prolog.Dir(v.GetString("run-dir")).Jobs())
				if err != nil {
					fmt.Fprintln(out, err)
				}
				for i, d := range lib.Devices() {
					s, err := lib.Sample(i)
					if err != nil {
						fmt.Fprintf(out, "%s gpu %d: %v\n", time.Now().Format(time.TimeOnly), d.Minor, err)
						continue
					}
					var who []string
					for _, j := range prolog.Sharers(jobs, d.Minor) {
						who = append(who, fmt.Sprintf("%d %s", j.JobID, j.User))
					}
					fmt.Fprintf(out, "%s gpu %d  util %3.0f %%  mem %6.0f MiB  PCIe %6.0f MB/s  %4.0f W  %s\n",
						time.Now().Format(time.TimeOnly), d.Minor, 100*s.GPU, s.MemMiB, s.PCIeMBps, s.PowerW, strings.Join(who, ", "))
				}
				select {
				case <-c.Context().Done():
					return nil
				case <-tick.C:
				}
			}
		},
	}
	c.Flags().Duration("period", time.Second, "time between two lines")
	c.Flags().String("run-dir", prolog.DefaultRunDir, "where the hooks tell of jobs")
	return c
}

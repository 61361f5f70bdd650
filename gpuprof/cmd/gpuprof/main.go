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
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spf13/viper"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
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
		Long: `gpuprof runs on each node with GPUs, as root. The prolog announces a job; gpuprof reads
the job's GPU through NVML while the job runs, and at the epilog sends a record to
the controller (slurmbridge serve), signed with MUNGE or a shared key. Records wait on disk until
the controller has them.

Settings come from ` + defaultFile + `, from GPUPROF_* and from flags.`,
		Version: version, SilenceUsage: true, SilenceErrors: true,
	}
	root.SetOut(out)
	root.SetErr(errOut)
	root.PersistentFlags().StringP("config", "c", "", "configuration file (default "+defaultFile+" where it exists)")
	root.PersistentFlags().String("nvml-library", "", "path of libnvidia-ml.so.1 (default: as the loader finds it)")
	root.PersistentFlags().String("log-level", "info", "debug, info, warn or error")
	root.AddCommand(newServe(errOut), newInfo(out))
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

// open reads a command's settings and opens NVML.
func open(c *cobra.Command) (*viper.Viper, *nvml.Library, error) {
	v, err := settings(c)
	if err != nil {
		return nil, nil, err
	}
	lib, err := nvml.Open(v.GetString("nvml-library"))
	return v, lib, err
}

func logger(v *viper.Viper, w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(v.GetString("log-level"))); err != nil {
		return nil, fmt.Errorf("log-level: %w", err)
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), nil
}

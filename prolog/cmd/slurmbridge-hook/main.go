// Command slurmbridge-hook is Slurm's Prolog, Epilog and TaskProlog. It never
// runs a Slurm command, never outlasts its deadline and always ends in exit 0:
// Slurm drains a node whose prolog fails.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/viper"

	"github.com/slurmbridge/slurmbridge/prolog"
)

var version = "unknown"

// settingsFile may hold settings of the node: run_dir, mps_control, sharing (mps
// or shard), thread_percentage (off or share), deadline, one_user.
const settingsFile = "/etc/slurmbridge/node.yaml"

func main() {
	args := os.Args[1:]
	if kind := prolog.KindOf(filepath.Base(os.Args[0])); kind != "" {
		args = append([]string{kind}, args...)
	}
	root := newRoot(os.Stdout, os.Getenv)
	root.SetArgs(args)
	if err := root.Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "slurmbridge-hook:", err)
		prolog.Syslog(err.Error())
		if hook(args) {
			os.Exit(0)
		}
		os.Exit(2)
	}
}

// hook reports whether the program was called as one of Slurm's hooks.
func hook(args []string) bool {
	for _, a := range args {
		if prolog.KindOf(a) != "" {
			return true
		}
	}
	return false
}

func newRoot(out io.Writer, get func(string) string) *cobra.Command {
	v := viper.New()
	v.SetDefault("run_dir", prolog.DefaultRunDir)
	v.SetDefault("mps_control", "/usr/bin/nvidia-cuda-mps-control")
	v.SetDefault("sharing", "mps")
	v.SetDefault("thread_percentage", "off")
	v.SetDefault("one_user", true)
	var settings string
	root := &cobra.Command{
		Use:   "slurmbridge-hook",
		Short: "Slurm's Prolog, Epilog and TaskProlog for shared GPUs",
		Long: `slurmbridge-hook is called by slurmd. In slurm.conf, or as a link in prolog.d and
epilog.d:

  Prolog=/usr/lib/slurmbridge/prolog
  Epilog=/usr/lib/slurmbridge/epilog
  TaskProlog=/usr/lib/slurmbridge/taskprolog

Each of these is this program under another name. Whatever goes wrong it ends in
exit 0 within its deadline, and says what it was in the system's log. Settings of
the node stand in ` + settingsFile + `; all have defaults.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetOut(out)
	root.PersistentFlags().StringVar(&settings, "settings", settingsFile, "settings of the node, a YAML file")
	root.PersistentFlags().String("run-dir", prolog.DefaultRunDir, "where hooks and agent meet")
	root.PersistentFlags().String("mps-control", "", "path of nvidia-cuda-mps-control")
	load := func(c *cobra.Command) *prolog.Hook {
		v.SetConfigFile(settings)
		if err := v.ReadInConfig(); err != nil && !errors.Is(err, os.ErrNotExist) {
			// The job must start all the same, with the defaults.
			prolog.Syslog(fmt.Sprintf("%s: %v", settings, err))
		}
		for key, flag := range map[string]string{"run_dir": "run-dir", "mps_control": "mps-control"} {
			if f := c.Flags().Lookup(flag); f.Changed {
				v.Set(key, f.Value.String())
			}
		}
		dir := prolog.Dir(v.GetString("run_dir"))
		h := &prolog.Hook{
			Dir: dir, Shard: v.GetString("sharing") == "shard", Percentage: v.GetString("thread_percentage"), Now: time.Now,
		}
		if control := v.GetString("mps_control"); control != "" {
			if _, err := os.Stat(control); err == nil {
				h.MPS = &prolog.MPS{
					Dir: dir, Control: control, OneUser: v.GetBool("one_user"), UUID: uuids(dir), Env: v.GetStringSlice("mps_env"),
				}
			}
		}
		return h
	}
	for _, k := range []struct {
		name, short string
		do          func(ctx context.Context, h *prolog.Hook) error
	}{
		{"prolog", "Write the job's file; have MPS ready for a sharer", func(ctx context.Context, h *prolog.Hook) error { return h.Prolog(ctx, get) }},
		{"epilog", "Close the job's file; end MPS after the last sharer", func(ctx context.Context, h *prolog.Hook) error { return h.Epilog(ctx, get) }},
		{"taskprolog", "Print the variables a sharer's processes need", func(_ context.Context, h *prolog.Hook) error { return h.TaskProlog(out, get) }},
	} {
		root.AddCommand(&cobra.Command{
			Use: k.name, Short: k.short, Args: cobra.ArbitraryArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				// Settings are read within the deadline, too: their disk may hang.
				return prolog.Run(deadline(get), func(ctx context.Context) error {
					if err := k.do(ctx, load(c)); err != nil {
						return fmt.Errorf("%s of job %.20q: %w", k.name, get("SLURM_JOB_ID"), err)
					}
					return nil
				})
			},
		})
	}
	return root
}

// deadline is how long a hook may take; SLURMBRIDGE_HOOK_DEADLINE is for tests
// and for sites with very slow disks.
func deadline(get func(string) string) time.Duration {
	if d, err := time.ParseDuration(get("SLURMBRIDGE_HOOK_DEADLINE")); err == nil && d > 0 && d < time.Minute {
		return d
	}
	return 5 * time.Second
}

// uuids reads the names of the node's GPUs that the agent wrote down.
func uuids(dir prolog.Dir) func(int) string {
	var gpus []struct {
		Index int    `json:"index"`
		UUID  string `json:"uuid"`
	}
	body, err := os.ReadFile(filepath.Join(string(dir), "gpus.json"))
	if err == nil {
		err = json.Unmarshal(body, &gpus)
	}
	return func(i int) string {
		if err != nil {
			return ""
		}
		for _, g := range gpus {
			if g.Index == i {
				return g.UUID
			}
		}
		return ""
	}
}

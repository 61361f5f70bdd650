// Command gpuprof is the node agent: it records what each job uses of its GPUs and sends it to the controller.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/etc"
	"github.com/slurmbridge/slurmbridge/etc/settings"
	"github.com/slurmbridge/slurmbridge/etc/settings/overrule"
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
	root.AddCommand(newServe(errOut), newInfo(out))
	return root
}

// config are the settings. etc/gpuprof.yaml says what each means.
type config struct {
	Controller       string        `mapstructure:"controller"`
	ControllerConfig string        `mapstructure:"controller_config"`
	Node             string        `mapstructure:"node"`
	Period           time.Duration `mapstructure:"period" is:"5ms to 1m"`
	RunDir           string        `mapstructure:"run_dir"`
	Spool            string        `mapstructure:"spool"`
	SpoolMiB         int           `mapstructure:"spool_mib" is:"1 to 1048576"`
	Listen           string        `mapstructure:"listen" is:"address"`
	WebConfig        string        `mapstructure:"web_config"`
	HookSettings     string        `mapstructure:"hook_settings"`
	MungeSocket      string        `mapstructure:"munge_socket"`
	KeyFile          string        `mapstructure:"key_file"`
	NVMLLibrary      string        `mapstructure:"nvml_library"`
	DCGM             string        `mapstructure:"dcgm_metrics"`
	LogLevel         string        `mapstructure:"log_level" is:"debug, info, warn or error"`
}

// load reads the settings of a command: file, variables and flags.
func load(c *cobra.Command) (*config, error) {
	file, _ := c.Flags().GetString("config")
	if file == "" {
		if _, err := os.Stat(defaultFile); err == nil {
			file = defaultFile
		}
	}
	out := &config{}
	_, err := settings.Load(file, out, settings.Source{Defaults: etc.Agent, Overrule: overrule.By("GPUPROF", c.Flags())})
	return out, err
}

func logger(cfg *config, w io.Writer) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(cfg.LogLevel)) // it was checked
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

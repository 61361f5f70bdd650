// Package cli is what slurmbridge and slurmbridge-lab have in common: they are one command
// line in two programs.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
)

// Env is what every command has.
type Env struct {
	File   string // --config
	JSON   bool
	Out    io.Writer
	ErrOut io.Writer
}

// Load reads the settings with the command's own flags.
func (e *Env) Load(c *cobra.Command) (*config.Config, error) {
	cfg, err := config.Load(e.File, c.Flags())
	if err != nil {
		return nil, Usage(err)
	}
	return cfg, nil
}

// PrintJSON writes v to standard output.
func (e *Env) PrintJSON(v any) error {
	enc := json.NewEncoder(e.Out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// Table begins a table on standard output; title "" = none.
func (e *Env) Table(title string, header ...any) table.Writer {
	t := table.NewWriter()
	t.SetOutputMirror(e.Out)
	t.SetStyle(table.StyleLight)
	t.SetTitle(title)
	t.AppendHeader(header)
	return t
}

// Usage marks a mistake in what the user wrote, not in what the program did.
func Usage(err error) error { return usageError{err} }

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Exit ends the program with a status of its own.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Root completes a program's root command by its subcommands and by what all have.
func Root(e *Env, version string, root *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	root.Use, root.Version, root.SilenceUsage, root.SilenceErrors = "slurmbridge", version, true, true
	root.SetOut(e.Out)
	root.SetErr(e.ErrOut)
	root.SetVersionTemplate("slurmbridge {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return Usage(fmt.Errorf("%w; see %s --help", err, c.CommandPath()))
	})
	root.PersistentFlags().StringVarP(&e.File, "config", "c", "", "configuration file (default "+config.DefaultFile+" where it exists)")
	root.PersistentFlags().BoolVar(&e.JSON, "json", false, "output for programs")
	root.AddCommand(commands...)
	for _, c := range commands {
		if c.HasSubCommands() && !c.Runnable() {
			// Cobra would answer a subcommand that there isn't with help and no error.
			c.Args = cobra.NoArgs
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
		}
	}
	return root
}

// Run runs a command line until it ends or a signal ends it. It returns the exit status:
// 0, 1 on failure, 2 where the command line or the configuration is wrong.
func Run(root *cobra.Command, args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root.SetArgs(args)
	called := false
	root.PersistentPreRun = func(*cobra.Command, []string) { called = true }
	c, err := root.ExecuteContextC(ctx)
	if err == nil {
		return 0
	}
	var exit Exit
	if errors.As(err, &exit) {
		return int(exit)
	}
	var usage usageError
	isUsage := errors.As(err, &usage)
	if !called && !isUsage {
		// No command was run: there is none of that name, or not with these words.
		// Cobra's suggestions come on lines of their own.
		err = fmt.Errorf("%s; see %s --help", strings.Join(strings.Fields(err.Error()), " "), c.CommandPath())
		isUsage = true
	}
	fmt.Fprintf(root.ErrOrStderr(), "slurmbridge: %v\n", err)
	if isUsage {
		return 2
	}
	return 1
}

// Package cli is what the daemon's and the laboratory's commands have in common.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode"

	"github.com/google/renameio/v2"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/slurmbridge/slurmbridge/slurmbridge/config"
)

// Env is what every command has.
type Env struct {
	Version string // of the program
	File    string // --config
	JSON    bool
	Out     io.Writer // for people: Root lets no control characters through
	ErrOut  io.Writer

	exact io.Writer // Out as it was given; nil = Out
}

// Load reads the settings with the command's own flags.
func (e *Env) Load(c *cobra.Command) (*config.Config, error) {
	cfg, err := config.Load(e.File, c.Flags())
	if err != nil {
		return nil, Usage(err)
	}
	return cfg, nil
}

// Configured is a command's RunE that is given the settings as well.
func (e *Env) Configured(run func(c *cobra.Command, cfg *config.Config, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(c *cobra.Command, args []string) error {
		cfg, err := e.Load(c)
		if err != nil {
			return err
		}
		return run(c, cfg, args)
	}
}

// Exact is standard output for programs: what is written to it stays as it is.
func (e *Env) Exact() io.Writer { return cmp.Or(e.exact, e.Out) }

// Show writes v to standard output with --json, otherwise what print writes.
func (e *Env) Show(v any, print func()) error {
	if e.JSON {
		return e.PrintJSON(v)
	}
	print()
	return nil
}

// Log is the log of a command that is no daemon.
func (e *Env) Log() *slog.Logger { return slog.New(slog.NewTextHandler(e.ErrOut, nil)) }

// PrintJSON writes v to standard output.
func (e *Env) PrintJSON(v any) error {
	enc := json.NewEncoder(e.Exact())
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// WriteJSON writes v to a file, whole or not at all, to standard output for "-", nowhere for "".
func (e *Env) WriteJSON(file string, v any) error {
	switch file {
	case "":
		return nil
	case "-":
		return e.PrintJSON(v)
	}
	text, err := json.MarshalIndent(v, "", "  ")
	if err == nil {
		text = append(text, '\n')
		if info, serr := os.Stat(file); serr == nil && !info.Mode().IsRegular() { // /dev/stderr, say, isn't replaced
			err = os.WriteFile(file, text, 0o644) //nolint:gosec // the user names it
		} else {
			err = renameio.WriteFile(file, text, 0o644)
		}
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", file, Cause(err))
	}
	return nil
}

// Cause is err without a file's name, which the message has.
func Cause(err error) error {
	var where *os.PathError
	if errors.As(err, &where) {
		return where.Err
	}
	return err
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

// Printable passes text on with ? for whatever could move a terminal's cursor or hide text: users, nodes and other
// programs wrote some of it.
type Printable struct {
	io.Writer
	failed error // the first that a write returned: what prints for people doesn't look
}

// Write implements io.Writer.
func (p *Printable) Write(b []byte) (int, error) {
	if _, err := p.Writer.Write(bytes.Map(printable, b)); err != nil {
		p.failed = cmp.Or(p.failed, err)
		return 0, err
	}
	return len(b), nil
}

func printable(r rune) rune {
	if r == '\n' || r == '\t' || unicode.IsPrint(r) {
		return r
	}
	return '?'
}

// Usage marks a mistake in what the user wrote, not in what the program did.
func Usage(err error) error { return usageError{err} }

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Exit ends the program with a status of its own.
type Exit int

func (e Exit) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

// Root completes a program's root command by its subcommands and by what all have.
func Root(e *Env, root *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	root.Use, root.Version, root.SilenceUsage, root.SilenceErrors = "slurmbridge", e.Version, true, true
	e.exact, e.Out = e.Out, &Printable{Writer: e.Out}
	root.SetOut(e.Out)
	root.SetErr(e.ErrOut)
	root.SetVersionTemplate("slurmbridge {{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return Usage(fmt.Errorf("%w; see %s --help", err, c.CommandPath()))
	})
	root.PersistentFlags().StringVarP(&e.File, "config", "c", "",
		"configuration file (default "+config.DefaultFile+" where it exists)")
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
	if out, is := root.OutOrStdout().(*Printable); is && err == nil && out.failed != nil {
		err, called = out.failed, true
	}
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
	fmt.Fprintf(&Printable{Writer: root.ErrOrStderr()}, "slurmbridge: %v\n", err)
	if isUsage {
		return 2
	}
	return 1
}

// Values are what shells complete a flag's value by.
func Values(c *cobra.Command, flag string, values ...string) {
	complete := cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)
	if err := c.RegisterFlagCompletionFunc(flag, complete); err != nil {
		panic(err) // there is no such flag
	}
}

// Bar shows how far long work has come on the last line of a terminal; on anything else it shows
// nothing, so that logs stay short.
type Bar struct{ out io.Writer }

// NewBar begins a bar.
func NewBar(out io.Writer) *Bar {
	if f, ok := out.(*os.File); !ok || !term.IsTerminal(int(f.Fd())) {
		out = io.Discard
	}
	return &Bar{out}
}

// At shows that step of steps begins, and what it is.
func (b *Bar) At(step, steps int, what string) {
	fmt.Fprintf(b.out, "\r%5.1f %% %-60.60s", 100*float64(step)/float64(max(steps, 1)), what)
}

// Done ends the bar.
func (b *Bar) Done() { fmt.Fprint(b.out, "\r\033[K") }

package lab

import (
	"bytes"
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
)

// call runs one command within this process.
func call(args ...string) (status int, out, errOut string) {
	var o, e bytes.Buffer
	status = run(args, &o, &e)
	return status, o.String(), e.String()
}

// run runs a command line of a program that has the laboratory's commands alone.
func run(args []string, stdout, stderr io.Writer) int { return cli.Run(newRoot(stdout, stderr), args) }

func newRoot(stdout, stderr io.Writer) *cobra.Command {
	env := &cli.Env{Out: stdout, ErrOut: stderr}
	return cli.Root(env, "test", &cobra.Command{}, Commands(env, "test")...)
}

func TestUnknownSubcommandIsRefused(t *testing.T) {
	status, out, errOut := call("interference", "nope")
	if status != 2 || out != "" || !strings.Contains(errOut, `unknown command "nope"`) ||
		strings.Count(errOut, "\n") != 1 {
		t.Errorf("%d %q %q", status, out, errOut)
	}
}

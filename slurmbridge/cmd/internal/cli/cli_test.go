package cli

import (
	"bytes"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// What a user or a node wrote can't clear the terminal of whoever reads it, or hide what follows; programs get it as it
// is.
func TestNobodyClearsATerminal(t *testing.T) {
	const evil = "a\x1b[2J\u009b8m\u202eb\r…é\t\n"
	var out, errOut bytes.Buffer
	e := &Env{Out: &out, ErrOut: &errOut}
	root := Root(e, &cobra.Command{RunE: func(*cobra.Command, []string) error {
		_, err := e.Out.Write([]byte(evil))
		must.OK(t, err)
		return errors.New(evil)
	}})
	must.Equal(t, Run(root, nil), 1, "status")
	const shown = "a?[2J?8m?b?…é\t\n"
	must.Equal(t, out.String(), shown)
	must.Equal(t, errOut.String(), "slurmbridge: "+shown+"\n")
	out.Reset()
	_, err := e.Exact().Write([]byte(evil))
	must.OK(t, err)
	must.Equal(t, out.String(), evil)
}

// A command whose output is lost has failed: a script must not take half a table for a whole one.
func TestACommandWhoseOutputIsLostFails(t *testing.T) {
	full := must.Get(os.OpenFile("/dev/full", os.O_WRONLY, 0))(t)
	defer full.Close()
	var errOut bytes.Buffer
	e := &Env{Out: full, ErrOut: &errOut}
	root := Root(e, &cobra.Command{Run: func(*cobra.Command, []string) { _, _ = io.WriteString(e.Out, "a\n") }})
	must.Equal(t, Run(root, nil), 1)
	must.Equal(t, errOut.String(), "slurmbridge: write /dev/full: no space left on device\n")
}

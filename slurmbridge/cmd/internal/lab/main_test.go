package lab

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"image/png"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/slurmbridge/cmd/internal/cli"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
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
	profiles := &cobra.Command{Use: "profiles"}
	profiles.AddCommand(Plot(env))
	return cli.Root(env, "test", &cobra.Command{}, append(Commands(env, "test"), profiles)...)
}

func TestUnknownSubcommandIsRefused(t *testing.T) {
	status, out, errOut := call("interference", "nope")
	if status != 2 || out != "" || !strings.Contains(errOut, `unknown command "nope"`) ||
		strings.Count(errOut, "\n") != 1 {
		t.Errorf("%d %q %q", status, out, errOut)
	}
}

func TestProfilesPlot(t *testing.T) {
	t.Setenv("SLURMBRIDGE_DATABASE", filepath.Join(t.TempDir(), "db"))
	st := must.Get(store.Open(t.Context(), os.Getenv("SLURMBRIDGE_DATABASE")))(t)
	lammps, _ := apps.ByName("lammps")
	must.OK(t, st.Import(t.Context(), []*rlcore.Profile{lammps}))
	st.Close()
	for name, start := range map[string]string{"p.png": "\x89PNG", "p.svg": "<?xml"} {
		out := filepath.Join(t.TempDir(), name)
		if status, _, errOut := call("profiles", "plot", "lammps", "-o", out); status != 0 || errOut != "" {
			t.Fatalf("%s: %d %q", name, status, errOut)
		}
		body, err := os.ReadFile(out)
		if err != nil || !bytes.HasPrefix(body, []byte(start)) {
			t.Errorf("%s: %.20q %v", name, body, err)
		}
		if name == "p.png" {
			if _, err := png.Decode(bytes.NewReader(body)); err != nil {
				t.Error(err)
			}
		}
	}
	for _, args := range [][]string{{"-o", "x.gif"}, {}} {
		if status, _, errOut := call(append([]string{"profiles", "plot", "lammps"}, args...)...); status != 2 ||
			!strings.Contains(errOut, ".png") {
			t.Errorf("%v: %d %s", args, status, errOut)
		}
	}
}

func rounds() []dqn.RoundStats {
	var out []dqn.RoundStats
	for i := 1; i <= 10; i++ {
		p := dqn.RoundStats{Round: i, Train: 1 / float64(i), Loss: 0.3 / float64(i), Eps: 0.3 - 0.02*float64(i)}
		if i%5 == 0 {
			p.Check = 0.9 / float64(i)
		}
		out = append(out, p)
	}
	return out
}

func drawn(t *testing.T, name string, p []dqn.RoundStats) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must.OK(t, drawCurve(path, p))
	data := must.Get(os.ReadFile(path))(t)
	return data
}

// writing is all text of an SVG.
func writing(t *testing.T, data []byte) string {
	t.Helper()
	d, out := xml.NewDecoder(bytes.NewReader(data)), ""
	for {
		tok, err := d.Token()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if c, ok := tok.(xml.CharData); ok {
			out += string(c) + "\n"
		}
	}
}

func TestCurve(t *testing.T) {
	svg := drawn(t, "curve.svg", rounds())
	for _, pan := range panels {
		for _, s := range pan.lines {
			if !bytes.Contains(svg, fmt.Appendf(nil, "#%02X%02X%02X", s.colour.R, s.colour.G, s.colour.B)) {
				t.Errorf("%s isn't drawn", s.name)
			}
		}
	}
	text := writing(t, svg)
	for _, w := range []string{
		"round", "makespan ÷ one after the other", "validation", "loss, Huber", "epsilon",
		"chance of a random choice",
	} {
		if !strings.Contains(text, w) {
			t.Errorf("%q isn't written there", w)
		}
	}
}

// A training that was broken off at once, or one whose figures went astray, is
// drawn as far as it can be.
func TestCurveOfLittle(t *testing.T) {
	never := rounds()[:1]
	if text := writing(t, drawn(t, "a.svg", never)); strings.Contains(text, "validation") ||
		!strings.Contains(text, "training") {
		t.Errorf("no validation yet, but the curve says %q", text)
	}
	astray := rounds()
	astray[3].Loss, astray[4].Train = math.NaN(), math.Inf(1)
	writing(t, drawn(t, "b.svg", astray))
	writing(t, drawn(t, "c.svg", []dqn.RoundStats{{Round: 1, Loss: math.NaN(), Train: math.NaN(), Eps: math.NaN()}}))
}

func TestCurveErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "no", "such", "curve.png")
	if err := drawCurve(path, rounds()); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("error %v doesn't name %s", err, path)
	}
	if err := drawCurve("curve.pdf", rounds()); err == nil || !strings.Contains(err.Error(), ".pdf") {
		t.Errorf("error %v", err)
	}
	if err := drawCurve("curve.png", nil); !errors.Is(err, errNoCurve) {
		t.Errorf("error %v", err)
	}
}

package experiment

import (
	"image/color"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

// made is a policy that this file alone knows.
var made = policy.Register(policy.Spec{
	Name: "madeup", About: "for this test", Rank: 1000, Colour: color.RGBA{1, 2, 3, 255}, Contender: true,
	New: func(s policy.Setup) (rlcore.Policy, error) {
		return baseline.NewThroughput("madeup", s.Predictor, 0.01), nil
	},
})

// One file adds a policy: it competes, is drawn in its colour, and has a place in tables.
func TestRegisteredPolicyCompetes(t *testing.T) {
	r, err := Run(t.Context(), Options{Workloads: []string{"random"}, Policies: []string{made.Name}, Seeds: 1, Effort: hasty})
	if err != nil {
		t.Fatal(err)
	}
	if l := r.Workloads["random"][made.Name]; l == nil || l.MakespanVsSJF <= 0 || l.MakespanVsSJF >= 1 {
		t.Fatalf("its line is %+v", l)
	}
	if names := Names(); names[len(names)-1] != made.Name {
		t.Errorf("tables list %v", names)
	}
	dir := t.TempDir()
	if _, err := r.Figures(dir, "svg"); err != nil {
		t.Fatal(err)
	}
	for _, figure := range []string{"fig14-random", "fig15-slowdowns", "fig16-training", "fig17-cost", "makespans"} {
		file := filepath.Join(dir, figure+".svg")
		if text := writing(t, file); !strings.Contains(text, made.Name) {
			t.Errorf("%s doesn't name it", figure)
		}
		svg, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if coloured := figure == "fig14-random" || figure == "fig16-training" || figure == "makespans"; coloured && !strings.Contains(string(svg), "#010203") {
			t.Errorf("%s doesn't draw it in its colour", figure)
		}
	}
}

func TestRegisteredPolicyReplays(t *testing.T) {
	trace := history()
	r, err := Replay(t.Context(), trace, ReplayOptions{Policies: []string{made.Name}, Effort: hasty, Tries: 1})
	if err != nil {
		t.Fatal(err)
	}
	if x := r.Policies[made.Name]; x == nil || x.MakespanS <= 0 {
		t.Errorf("its outcome is %+v", x)
	}
}

package soak

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
)

// fine is a job to which nothing happened: 30 s alone, a minute's limit, ended as on plain
// Slurm.
func fine() fate {
	return fate{
		Key: "life1", SoloS: 30, LimitS: 60, Contract: 2, Kept: true,
		State: "COMPLETED", Exit: "0:0", Arrival: 100, Start: 110, End: 141, PlainEnd: 140,
	}
}

func TestJudge(t *testing.T) {
	r := rules{PauseS: 1, MarginS: 5}
	for name, c := range map[string]struct {
		change func(f *fate)
		want   []string
	}{
		"nothing":                         {func(*fate) {}, nil},
		"timeout":                         {func(f *fate) { f.State = "TIMEOUT" }, []string{harmTimeout}},
		"its own timeout":                 {func(f *fate) { f.State, f.SoloS = "TIMEOUT", 60 }, nil},
		"timeout, slurmd was gone":        {func(f *fate) { f.State, f.Fault = "TIMEOUT", "slurmd killed" }, nil},
		"out of memory":                   {func(f *fate) { f.State, f.Exit = "FAILED", exitOOM }, []string{harmOOM}},
		"out of memory, slurmd gone":      {func(f *fate) { f.State, f.Exit, f.Fault = "FAILED", exitOOM, "slurmd killed" }, []string{harmOOM}},
		"its own error":                   {func(f *fate) { f.State, f.Exit, f.Fails = "FAILED", "9:0", true }, nil},
		"another error":                   {func(f *fate) { f.State, f.Exit = "FAILED", "4:0" }, []string{harmFailed}},
		"deadline":                        {func(f *fate) { f.State, f.Deadline = "DEADLINE", 175 }, []string{harmDeadline}},
		"its limit won't fit before it":   {func(f *fate) { f.State, f.Deadline = "DEADLINE", 171 }, nil},
		"late by a tenth":                 {func(f *fate) { f.End = 143 }, nil},
		"late by more":                    {func(f *fate) { f.End = 143.5 }, []string{harmLate}},
		"late, its owner's way":           {func(f *fate) { f.End, f.OwnWay = 200, true }, nil},
		"late, requeued by its owner":     {func(f *fate) { f.End, f.Kept = 200, false }, nil},
		"slower than its contract":        {func(f *fate) { f.Start, f.End, f.PlainEnd = 100, 167, 180 }, []string{harmContract}},
		"as slow as its contract":         {func(f *fate) { f.Start, f.End, f.PlainEnd = 100, 160, 180 }, nil},
		"slow without a contract":         {func(f *fate) { f.Start, f.End, f.PlainEnd, f.Contract = 100, 167, 180, 0 }, nil},
		"gone":                            {func(f *fate) { f.State = "" }, []string{harmLost}},
		"still waiting":                   {func(f *fate) { f.State = "PENDING" }, []string{harmLost}},
		"cancelled":                       {func(f *fate) { f.State, f.Kept = "CANCELLED", false }, nil},
		"cancelled, not by its owner":     {func(f *fate) { f.State = "CANCELLED" }, []string{harmLost}},
		"its node failed":                 {func(f *fate) { f.State, f.Fault = "NODE_FAIL", "slurmd killed" }, nil},
		"its node failed, nobody did it":  {func(f *fate) { f.State = "NODE_FAIL" }, []string{harmLost}},
		"late, and plain Slurm never had": {func(f *fate) { f.PlainEnd = math.NaN() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f := fine()
			c.change(&f)
			var got []string
			for _, h := range judge(&f, r) {
				got = append(got, h.Kind)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}

// Every harm that may not be fails the campaign.
func TestSum(t *testing.T) {
	change := map[string]func(f *fate){
		harmTimeout:  func(f *fate) { f.State = "TIMEOUT" },
		harmOOM:      func(f *fate) { f.State, f.Exit = "FAILED", exitOOM },
		harmDeadline: func(f *fate) { f.State, f.Deadline = "DEADLINE", 200 },
		harmLost:     func(f *fate) { f.State = "PENDING" },
	}
	for kind, c := range change {
		f := fine()
		c(&f)
		rep := sum([]fate{fine(), f}, rules{PauseS: 1, MarginS: 5})
		if got := rep.Harm.broken(); got != "1 × "+kind {
			t.Errorf("%s: %q", kind, got)
		}
	}
	never := fine()
	never.State, never.Start, never.End, never.PlainEnd = "PENDING", math.NaN(), math.NaN(), math.NaN()
	if err := cluster.WriteJSON(filepath.Join(t.TempDir(), "build", "soak.json"), sum([]fate{never}, rules{})); err != nil {
		t.Error(err)
	}
	late := fine()
	late.End = 190
	rep := sum([]fate{fine(), late}, rules{PauseS: 1, MarginS: 5})
	if rep.Harm.Late != 1 || rep.LateSMax != 50 || rep.LateBySolo != 1 || rep.LateShare != 0.5 || rep.Harm.broken() != "" {
		t.Errorf("%+v", rep)
	}
}

func TestHeld(t *testing.T) {
	for name, c := range map[string]struct {
		seen []sight
		want float64
	}{
		"not gated":                    {[]sight{{At: 0, Idle: true}, {At: 500, Idle: true, DeadS: 500}}, 0},
		"no GPU is idle":               {[]sight{{At: 0, Gated: true}, {At: 500, Gated: true}}, 0},
		"beside an idle GPU":           {[]sight{{At: 0, Gated: true, Idle: true}, {At: 100, Gated: true, Idle: true}}, 40},
		"beside an idle GPU, in parts": {[]sight{{At: 0, Gated: true, Idle: true}, {At: 50, Gated: true, Idle: true}, {At: 60, Gated: true}, {At: 70, Gated: true, Idle: true}, {At: 100, Gated: true, Idle: true}}, 20},
		"dead for less than a lease":   {[]sight{{At: 0, Gated: true, DeadS: 25}}, 0},
		"dead for longer":              {[]sight{{At: 0, Gated: true, DeadS: 20}, {At: 25, Gated: true, DeadS: 45}}, 15},
	} {
		if got := heldS(c.seen, 30, 60); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

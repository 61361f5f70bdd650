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
func fine() *job {
	return &job{
		life: &life{SoloS: 30, limitS: 60, Contract: 2, at: 100, gone: math.Inf(1)}, name: "life1",
		shown: shown{State: "COMPLETED", Exit: "0:0", Start: 110, End: 141}, plainEnd: 140,
	}
}

func TestJudge(t *testing.T) {
	r := rules{PauseS: 1, MarginS: 5}
	for name, c := range map[string]struct {
		change func(j *job)
		want   []string
	}{
		"nothing":                  {func(*job) {}, nil},
		"timeout":                  {func(j *job) { j.State = "TIMEOUT" }, []string{harmTimeout}},
		"its own timeout":          {func(j *job) { j.State, j.SoloS = "TIMEOUT", 60 }, nil},
		"timeout, slurmd was gone": {func(j *job) { j.State, j.fault = "TIMEOUT", "slurmd killed" }, nil},
		"out of memory":            {func(j *job) { j.State, j.Exit = "FAILED", exitOOM }, []string{harmOOM}},
		"out of memory, slurmd gone": {
			func(j *job) { j.State, j.Exit, j.fault = "FAILED", exitOOM, "slurmd killed" },
			[]string{harmOOM},
		},
		"its own error":                 {func(j *job) { j.State, j.Exit, j.Fails = "FAILED", "9:0", true }, nil},
		"another error":                 {func(j *job) { j.State, j.Exit = "FAILED", "4:0" }, []string{harmFailed}},
		"deadline":                      {func(j *job) { j.State, j.DeadlineS = "DEADLINE", 75 }, []string{harmDeadline}},
		"its limit won't fit before it": {func(j *job) { j.State, j.DeadlineS = "DEADLINE", 71 }, nil},
		"late by a tenth":               {func(j *job) { j.End = 143 }, nil},
		"late by more":                  {func(j *job) { j.End = 143.5 }, []string{harmLate}},
		"late, its owner's way":         {func(j *job) { j.End, j.Acts = 200, []act{{What: gres}} }, nil},
		"late, requeued by its owner":   {func(j *job) { j.End, j.requeued = 200, 120 }, nil},
		"slower than its contract": {
			func(j *job) { j.Start, j.End, j.plainEnd = 100, 167, 180 },
			[]string{harmContract},
		},
		"as slow as its contract":         {func(j *job) { j.Start, j.End, j.plainEnd = 100, 160, 180 }, nil},
		"slow without a contract":         {func(j *job) { j.Start, j.End, j.plainEnd, j.Contract = 100, 167, 180, 0 }, nil},
		"its GPU was in use":              {func(j *job) { j.inUse = true }, []string{harmInUse}},
		"on another's GPU":                {func(j *job) { j.wrongGPU = "n1:1" }, []string{harmWrongGPU}},
		"gone":                            {func(j *job) { j.State = "" }, []string{harmLost}},
		"still waiting":                   {func(j *job) { j.State = "PENDING" }, []string{harmLost}},
		"cancelled":                       {func(j *job) { j.State, j.gone = "CANCELLED", 130 }, nil},
		"cancelled, not by its owner":     {func(j *job) { j.State = "CANCELLED" }, []string{harmLost}},
		"its node failed":                 {func(j *job) { j.State, j.fault = "NODE_FAIL", "slurmd killed" }, nil},
		"its node failed, nobody did it":  {func(j *job) { j.State = "NODE_FAIL" }, []string{harmLost}},
		"late, and plain Slurm never had": {func(j *job) { j.plainEnd = math.NaN() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			j := fine()
			c.change(j)
			var got []string
			for _, h := range j.judge(r) {
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
	change := map[string]func(j *job){
		harmTimeout:  func(j *job) { j.State = "TIMEOUT" },
		harmOOM:      func(j *job) { j.State, j.Exit = "FAILED", exitOOM },
		harmDeadline: func(j *job) { j.State, j.DeadlineS = "DEADLINE", 100 },
		harmLost:     func(j *job) { j.State = "PENDING" },
		harmInUse:    func(j *job) { j.inUse = true },
		harmWrongGPU: func(j *job) { j.wrongGPU = "n1:1" },
	}
	for kind, c := range change {
		j := fine()
		c(j)
		rep := sum([]*job{fine(), j}, rules{PauseS: 1, MarginS: 5})
		if got := rep.broken(); got != "1 × "+kind {
			t.Errorf("%s: %q", kind, got)
		}
	}
	never := fine()
	never.State, never.Start, never.End, never.plainEnd = "PENDING", math.NaN(), math.NaN(), math.NaN()
	if err := cluster.WriteJSON(filepath.Join(t.TempDir(), "build", "soak.json"),
		sum([]*job{never}, rules{})); err != nil {
		t.Error(err)
	}
	for _, harmless := range []func(j *job){
		func(j *job) { j.State, j.Exit = "FAILED", "4:0" }, func(j *job) { j.End = 190 },
	} {
		j := fine()
		harmless(j)
		if rep := sum([]*job{fine(), j}, rules{PauseS: 1, MarginS: 5}); rep.Failed+int(rep.Harm[harmLate]) != 1 ||
			rep.broken() != "" {
			t.Errorf("%+v", rep)
		}
	}
}

func TestHeld(t *testing.T) {
	type look struct {
		at          float64
		gated, idle bool
		dead        float64
	}
	for name, c := range map[string]struct {
		looks []look
		want  float64
	}{
		"not gated":           {[]look{{1, false, true, 0}, {500, false, true, 1}}, 0},
		"no GPU is idle":      {[]look{{1, true, false, 0}, {500, true, false, 0}}, 0},
		"next to an idle GPU": {[]look{{1, true, true, 0}, {101, true, true, 0}}, 40},
		"next to an idle GPU, in parts": {[]look{
			{1, true, true, 0},
			{51, true, true, 0},
			{61, true, false, 0},
			{71, true, true, 0},
			{101, true, true, 0},
		}, 20},
		"dead for less than a lease": {[]look{{26, true, false, 1}}, 0},
		"dead for longer":            {[]look{{21, true, false, 1}, {46, true, false, 1}}, 15},
	} {
		var h held
		for _, l := range c.looks {
			h.note(l.at, l.dead, l.gated, l.idle)
		}
		if got := h.tooLongS(30, 60); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

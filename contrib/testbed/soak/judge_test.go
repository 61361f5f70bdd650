package soak

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

// fine is a job to which nothing happened: 30 s alone, a minute's limit, ended as on plain Slurm.
func fine() *job {
	return &job{
		life: &life{SoloS: 30, limitS: 60, Contract: 2, at: 100, gone: math.Inf(1)}, name: "life1",
		shown: shown{State: "COMPLETED", Exit: "0:0", Start: 110, End: 141}, plainEnd: 140,
	}
}

// What harm came to a job, and which harms a campaign may not end with.
func TestJudge(t *testing.T) {
	for name, c := range map[string]struct {
		change func(j *job)
		want   *kind
	}{
		"nothing":                         {func(*job) {}, nil},
		"timeout":                         {func(j *job) { j.State = "TIMEOUT" }, timedOut},
		"its own timeout":                 {func(j *job) { j.State, j.SoloS = "TIMEOUT", 60 }, nil},
		"timeout, slurmd was gone":        {func(j *job) { j.State, j.fault = "TIMEOUT", "slurmd killed" }, nil},
		"out of memory":                   {func(j *job) { j.State, j.Exit = "FAILED", exitOOM }, noMemory},
		"no memory, slurmd gone":          {func(j *job) { j.State, j.Exit, j.fault = "FAILED", exitOOM, "slurmd killed" }, noMemory},
		"its own error":                   {func(j *job) { j.State, j.Exit, j.Fails = "FAILED", "9:0", true }, nil},
		"another error":                   {func(j *job) { j.State, j.Exit = "FAILED", "4:0" }, failed},
		"deadline":                        {func(j *job) { j.State, j.DeadlineS = "DEADLINE", 99 }, deadline},
		"its limit won't fit before it":   {func(j *job) { j.State, j.DeadlineS = "DEADLINE", 98 }, nil},
		"late by a tenth":                 {func(j *job) { j.End = 143 }, nil},
		"late by more":                    {func(j *job) { j.End = 143.5 }, late},
		"late, its owner's way":           {func(j *job) { j.End, j.Acts = 200, []act{{What: gres}} }, nil},
		"late, requeued by its owner":     {func(j *job) { j.End, j.requeued = 200, 120 }, nil},
		"slower than its contract":        {func(j *job) { j.Start, j.End, j.plainEnd = 100, 192, 195 }, contract},
		"as slow as its contract":         {func(j *job) { j.Start, j.End, j.plainEnd = 100, 191, 195 }, nil},
		"slow without a contract":         {func(j *job) { j.Start, j.End, j.plainEnd, j.Contract = 100, 192, 195, 0 }, nil},
		"its GPU was in use":              {func(j *job) { j.inUse = true }, inUse},
		"on another's GPU":                {func(j *job) { j.wrongGPU = "n1:1" }, wrongGPU},
		"gone":                            {func(j *job) { j.State, j.Start, j.End = "", math.NaN(), math.NaN() }, lost},
		"still waiting":                   {func(j *job) { j.State = "PENDING" }, lost},
		"cancelled":                       {func(j *job) { j.State, j.gone = "CANCELLED", 130 }, nil},
		"cancelled, not by its owner":     {func(j *job) { j.State = "CANCELLED" }, lost},
		"its node failed":                 {func(j *job) { j.State, j.fault = "NODE_FAIL", "slurmd killed" }, nil},
		"its node failed, nobody did it":  {func(j *job) { j.State = "NODE_FAIL" }, lost},
		"late, and plain Slurm never had": {func(j *job) { j.plainEnd = math.NaN() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			j := fine()
			c.change(j)
			var got, want []string
			broken := ""
			if c.want != nil {
				want = []string{c.want.name}
				if c.want.fatal {
					broken = "1 × " + c.want.name
				}
			}
			for _, h := range j.judge(1) {
				got = append(got, h.Kind)
			}
			must.Equal(t, got, want)
			rep := sum([]*job{fine(), j}, 1)
			must.Equal(t, rep.broken(), broken)
			must.Equal(t, len(rep.Harmed), len(want))
			must.OK(t, cluster.WriteJSON(filepath.Join(t.TempDir(), "build", "soak.json"), rep)) // which has no NaN
		})
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
		var h gate
		for _, l := range c.looks {
			h.note(l.at, l.dead, l.gated, l.idle)
		}
		must.Equal(t, h.tooLongS(30, 60), c.want, name)
	}
}

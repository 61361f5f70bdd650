package experiment

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/lab/trace"
)

// bursts is a trace whose jobs come in sweeps of one user, seconds apart. Their lengths have a standard deviation of
// the logarithm of 1.6, and their limits are steps of a ladder.
func bursts(jobs, gpus int, load float64) *Trace {
	const medianS, sweepSD, ownSD = 900, 1.1, 1.16
	ladderH := []float64{1, 4, 12, 24, 48, 96, 168, 336}
	r := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // a benchmark is repeatable, not secret
	t := &Trace{GPUs: slices.Repeat([]rlcore.GPUSpec{{Model: "gpu", MemMiB: 24_000}}, gpus)}
	for k := range 12 {
		t.Profiles = append(t.Profiles, flat(fmt.Sprint("app", k), 1800, 0.15+0.06*float64(k), 800+700*float64(k)))
	}
	at := 0.0
	for len(t.Jobs) < jobs {
		sweep, app, user := 1, r.IntN(len(t.Profiles)), fmt.Sprint("u", r.IntN(20))
		if r.IntN(4) == 0 {
			sweep = 5 + r.IntN(46)
		}
		median, work := medianS*math.Exp(sweepSD*r.NormFloat64()), 0.0
		for range min(sweep, jobs-len(t.Jobs)) {
			s := max(5, median*math.Exp(ownSD*r.NormFloat64()))
			k := slices.IndexFunc(ladderH, func(h float64) bool { return h*3600 > 1.5*s })
			if k < 0 {
				k, s = len(ladderH)-1, ladderH[len(ladderH)-1]*3600/1.5
			}
			t.Jobs = append(t.Jobs, trace.Job{
				ID: fmt.Sprint(len(t.Jobs)), User: user, App: t.Profiles[app].App, SubmitS: at, DurationS: s,
				LimitS: 3600 * ladderH[k],
			})
			at, work = at+5*r.ExpFloat64(), work+s
		}
		at += work / float64(gpus) / load * r.ExpFloat64()
	}
	return t
}

// BenchmarkReplay replays sweeps under the policy that is built in. The digest of all starts and ends says whether a
// change of the code has changed a decision.
func BenchmarkReplay(b *testing.B) {
	for _, size := range []struct {
		jobs, gpus int
		load       float64
	}{{1500, 23, 1.2}, {5000, 100, 1.2}} {
		b.Run(fmt.Sprintf("jobs=%d/gpus=%d", size.jobs, size.gpus), func(b *testing.B) {
			r := must.Get(bursts(size.jobs, size.gpus, size.load).Ready(&Options{
				M:           rlcore.DefaultWindow,
				MaxSlowdown: rlcore.DefaultMaxSlowdown,
			}))(b)
			r.World.Objective, r.World.BuiltIn = policy.Turnaround, true
			c := must.Get(r.World.Prepare(b.Context(), ours, nil, Effort{}, 1))(b)
			var res *sim.Result
			for b.Loop() {
				res = must.Get(c.Run(r.Config))(b)
			}
			sum := sha256.New()
			for i := range res.Jobs {
				fmt.Fprintf(sum, "%d %v %v %v\n", res.Jobs[i].GPU, res.Jobs[i].StartS, res.Jobs[i].EndS, res.Jobs[i].PlainEndS)
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*res.Decisions), "µs/decision")
			b.Logf("%d decisions, turnaround %.1f s, digest %x", res.Decisions, res.MeanTurnaroundS, sum.Sum(nil)[:8])
		})
	}
}

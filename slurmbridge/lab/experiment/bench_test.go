package experiment

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// BenchmarkReplay replays sweeps under the policy that is built in. The digest of all starts and ends says whether a
// change of the code has changed a decision.
func BenchmarkReplay(b *testing.B) {
	for _, size := range []struct {
		jobs, gpus int
		load       float64
	}{{1500, 23, 1.2}, {5000, 100, 1.2}} {
		b.Run(fmt.Sprintf("jobs=%d/gpus=%d", size.jobs, size.gpus), func(b *testing.B) {
			p := must.Get(PlaceNamed("miso_sweeps"))(b)
			r := must.Get(p.ready(&Options{
				GPUs: size.gpus, Jobs: size.jobs, M: rlcore.DefaultWindow, MaxSlowdown: rlcore.DefaultMaxSlowdown,
			}, size.load, 7))(b)
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

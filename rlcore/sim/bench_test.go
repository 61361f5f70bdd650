package sim

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkSim reports simulated jobs a second, decisions included. On 100 GPUs
// the jobs arrive about as fast as they are served.
func BenchmarkSim(b *testing.B) {
	for _, size := range []struct{ gpus, jobs int }{{1, 30}, {100, 2000}} {
		for _, policy := range []string{"exclusive", "greedy"} {
			b.Run(fmt.Sprintf("gpus=%d/jobs=%d/%s", size.gpus, size.jobs, policy), func(b *testing.B) {
				cfg := catalogue(b, size.gpus, size.jobs, 1)
				if size.gpus > 1 {
					poisson(cfg.Jobs, 0.8, rand.New(rand.NewPCG(1, 2)))
				}
				d := decider(b, policy)
				if policy == "exclusive" {
					d.Guard.MaxMembers = 1 // a busy GPU needs no thought
				}
				cfg.Predictor = d.Guard.Predictor
				decisions := 0
				b.ReportAllocs()
				for b.Loop() {
					decisions += run(b, cfg, d).Decisions
				}
				b.ReportMetric(float64(b.N*size.jobs)/b.Elapsed().Seconds(), "jobs/s")
				b.ReportMetric(float64(decisions)/float64(b.N*size.jobs), "decisions/job")
			})
		}
	}
}

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

// BenchmarkPlan is one decision for each GPU of a site where all jobs come at once, and
// another one for each of them once all are busy: ns/decision.
func BenchmarkPlan(b *testing.B) {
	for _, size := range []struct{ gpus, jobs, window int }{
		{1, 30, 5},
		{1, 30, 12},
		{4, 100, 12},
		{500, 10_000, 5},
		{1000, 10_000, 12},
	} {
		b.Run(fmt.Sprintf("gpus=%d/jobs=%d/window=%d", size.gpus, size.jobs, size.window), func(b *testing.B) {
			cfg := catalogue(b, size.gpus, size.jobs, 1)
			d := decider(b, "srpt")
			d.M, cfg.M, cfg.Predictor = size.window, size.window, d.Guard.Predictor
			decisions := 0
			for b.Loop() {
				b.StopTimer()
				s, err := New(cfg)
				if err != nil {
					b.Fatal(err)
				}
				for range 2 * size.gpus {
					if !s.Next() {
						break
					}
					s.State()
					b.StartTimer()
					dec := s.Decide(d)
					b.StopTimer()
					s.Take(dec)
					decisions++
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(decisions), "ns/decision")
		})
	}
}

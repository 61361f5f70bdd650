package loop_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/plan"
	"github.com/slurmbridge/slurmbridge/slurmbridge/tracker"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// BenchmarkPlan is one plan of a look at a full cluster, without I/O.
func BenchmarkPlan(b *testing.B) {
	for _, c := range []struct {
		nodes, gpus, jobs int
		oneUser           bool // a GPU
	}{{1, 1, 5000, true}, {500, 1, 10000, true}, {125, 8, 5000, true}, {125, 8, 5000, false}} {
		b.Run(fmt.Sprintf("%dx%dGPUs/%djobs/oneUser=%v", c.nodes, c.gpus, c.jobs, c.oneUser), func(b *testing.B) {
			var nodes []job.Node
			for i := range c.nodes {
				nodes = append(nodes, node(fmt.Sprintf("n%d", i), c.gpus, 64))
			}
			card := rlcore.TitanXp
			card.SameUser = c.oneUser
			m := newModel(nodes...)
			gate, _ := m.CreateGate(context.Background(), time.Minute, nil)
			profiles := make([]*rlcore.Profile, 20)
			for i := range profiles {
				profiles[i] = app(fmt.Sprint("app", i), 600, 0.2+0.03*float64(i), 500*float64(1+i))
			}
			apps := map[string]job.App{}
			for i := range c.jobs {
				p := profiles[i%len(profiles)]
				j := m.submit(fmt.Sprint("user", i%40), time.Hour, p, true)
				apps[j.Ref] = job.App{Key: p.App, Profile: p}
			}
			snap, err := m.Poll(context.Background())
			if err != nil {
				b.Fatal(err)
			}
			pl := bridge(m, newMemory()).Planner
			f := &plan.Input{
				Snap: snap, Gate: gate, Apps: apps, Tracker: tracker.New(),
				Card: func(string) (rlcore.GPUSpec, bool) { return card, true },
			}
			b.ReportAllocs()
			for b.Loop() {
				if p := pl.Plan(f); len(p.Groups) == 0 {
					b.Fatal("no groups")
				}
			}
		})
	}
}

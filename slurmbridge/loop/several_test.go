package loop_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"pgregory.net/rapid"
)

// An empty node of several GPUs is filled at once, each group on a GPU of its own; then every GPU has
// the group that follows, which starts there.
func TestSeveralGPUsAreFilledAtOnce(t *testing.T) {
	for _, gpus := range []int{2, 4, 8} {
		t.Run(fmt.Sprint(gpus), func(t *testing.T) {
			m := newModel(node("n1", gpus, 64))
			b := bridge(m, newMemory())
			b.Planner.Decider.Guard.MaxMembers = 3
			tick(t, b, m, time.Second)
			p := app("alexnet", 60, 0.3, 2000)
			var jobs []*mjob
			for i := range 6 * gpus {
				jobs = append(jobs, m.submit("ann", time.Duration(40+i)*time.Second, p, true))
			}
			tick(t, b, m, 2*time.Second)
			for i, j := range jobs[:3*gpus] {
				if j.State != job.Running || j.gpu != i/3 {
					t.Errorf("job %d is %s on GPU %d", i, j.State, j.gpu)
				}
			}
			tick(t, b, m, 2*time.Second)
			for i, j := range jobs[3*gpus:] {
				if len(j.Dependency.List) != 3 || j.Dependency.List[0].Type != "afterany" {
					t.Errorf("job %d waits for %q", 3*gpus+i, j.Dependency.Raw)
				}
			}
			tick(t, b, m, 4*time.Minute)
			for i, j := range jobs {
				if !j.ended {
					t.Errorf("job %d is %s", i, j.State)
				}
			}
		})
	}
}

// Where Slurm looks at once at what is released, and nothing ends or is refused in between, each member
// lands where it is meant to.
func TestPlacedAsPlanned(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus := rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "gpus a node")
		m := newModel(node("n1", gpus, 64), node("n2", gpus, 64))
		m.leastLoaded = rapid.Bool().Draw(t, "least loaded")
		mem := newMemory()
		b := bridge(m, mem)
		card := rlcore.TitanXp
		card.SameUser = rapid.Bool().Draw(t, "one user")
		b.Card = func(string) (rlcore.GPUSpec, bool) { return card, true }
		b.Planner.Ahead, b.Planner.Join = false, rapid.Bool().Draw(t, "join")
		b.Planner.Room, b.Planner.RoomAnyway = b.Planner.Join && rapid.Bool().Draw(t, "room"), true
		members := 0
		m.started = func(j *mjob) {
			for _, g := range mem.groups {
				for i := range g.Members {
					if x := &g.Members[i]; x.Ref == j.Ref && x.State == job.MemberWaiting && (len(g.Members) > 1 || x.Shares < job.Units) {
						if members++; g.Node != j.Nodes || g.GPU != j.gpu {
							t.Fatalf("job %s with %d shares is on %s gpu %d, not on %s gpu %d", j.Ref, x.Shares, j.Nodes, j.gpu, g.Node, g.GPU)
						}
					}
				}
			}
		}
		var jobs []*mjob
		for range 60 {
			for range rapid.SampledFrom([]int{0, 0, 1, 2, 8}).Draw(t, "arrive") {
				mib := rapid.SampledFrom([]float64{500, 2000, 4000, 9000}).Draw(t, "MiB")
				run := rapid.IntRange(1, 40).Draw(t, "run")
				j := m.submit(rapid.SampledFrom([]string{"ann", "ann", "bob"}).Draw(t, "user"), time.Duration(run)*time.Second, app(fmt.Sprint(mib), float64(run), 0.3, mib), true)
				j.Priority += rapid.SampledFrom([]int64{0, 0, 1000}).Draw(t, "urgent")
				jobs = append(jobs, j)
			}
			if _, err := b.Tick(t.Context()); err != nil {
				t.Fatal(err)
			}
			m.schedule()
			m.advance(time.Second)
		}
		if !m.leastLoaded && len(jobs) > 40 && members == 0 {
			t.Fatal("no job ever shared")
		}
	})
}

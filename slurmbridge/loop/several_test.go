package loop_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Where Slurm looks at once at what is released, and nothing ends or is refused in between, each member
// lands where it is meant to.
func TestPlacedAsPlanned(t *testing.T) {
	members := 0
	property.Check(t, func(t *rapid.T) {
		gpus := rapid.SampledFrom([]int{2, 4, 8}).Draw(t, "gpus a node")
		m := newModel(node("n1", gpus, 64), node("n2", gpus, 64))
		m.leastLoaded = rapid.Bool().Draw(t, "least loaded")
		mem := newMemory()
		b := bridge(m, mem)
		card := rlcore.TitanXp
		card.SameUser = rapid.Bool().Draw(t, "one user")
		b.Card = func(string) (rlcore.GPUSpec, bool) { return card, true }
		b.Planner.Join = rapid.Bool().Draw(t, "join")
		b.Planner.Room, b.Planner.RoomAnyway = b.Planner.Join && rapid.Bool().Draw(t, "room"), true
		m.started = func(j *mjob) {
			for _, g := range mem.groups {
				for i := range g.Members {
					if g.Kind == job.Turn { // any empty GPU will do
						continue
					}
					if x := &g.Members[i]; x.Ref == j.Ref && x.State == job.MemberWaiting &&
						(len(g.Members) > 1 || x.Shares < job.Units) {
						if members++; g.Node != j.Nodes || g.GPU != j.gpu {
							t.Fatalf("job %s with %d shares is on %s gpu %d, not on %s gpu %d", j.Ref, x.Shares, j.Nodes, j.gpu, g.Node,
								g.GPU)
						}
					}
				}
			}
		}
		for range 60 {
			for range rapid.SampledFrom([]int{0, 0, 1, 2, 8}).Draw(t, "arrive") {
				mib := rapid.SampledFrom([]float64{500, 2000, 4000, 9000}).Draw(t, "MiB")
				run := rapid.IntRange(1, 40).Draw(t, "run")
				j := m.submit(rapid.SampledFrom([]string{"ann", "ann", "bob"}).Draw(t, "user"), time.Duration(run)*time.Second,
					app(fmt.Sprint(mib), float64(run), 0.3, mib), true)
				j.Priority += rapid.SampledFrom([]int64{0, 0, 1000}).Draw(t, "urgent")
			}
			must.Get(b.Tick(t.Context()))(t)
			m.schedule()
			m.advance(time.Second)
		}
	})
	if members == 0 {
		t.Error("no job ever shared")
	}
}

// Whatever comes and ends, nobody is sent next to those whose MPS server failed; once they have left, the GPU is used
// again. Who was on the way when it failed, or is led elsewhere, may still land there; its prolog lets it compute
// without MPS.
func TestNobodyJoinsAFailedServer(t *testing.T) {
	again := 0
	property.Check(t, func(t *rapid.T) {
		gpus := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "gpus a node")
		m := newModel(node("n1", gpus, 64), node("n2", gpus, 64))
		m.leastLoaded = rapid.Bool().Draw(t, "least loaded")
		l := &ledger{}
		mem := newMemory()
		b, _ := learning(m, mem, l)
		card := rlcore.TitanXp
		card.SameUser = rapid.Bool().Draw(t, "one user")
		b.Card = func(string) (rlcore.GPUSpec, bool) { return card, true }
		b.Planner.Room, b.Planner.RoomAnyway = rapid.Bool().Draw(t, "room"), true
		var jobs []*mjob
		on := func(a job.GPUAddr) int { return len(m.on(a.Node, a.GPU)) }
		failed, told := map[job.GPUAddr]bool{}, map[job.GPUAddr]bool{} // as the bridge knows; from the next look on
		used := map[job.GPUAddr]bool{}                                 // failed once
		since := map[job.GPUAddr]time.Time{}
		m.started = func(j *mjob) {
			at := job.GPUAddr{Node: j.Nodes, GPU: j.gpu}
			others := len(m.running(func(x *mjob) bool {
				return x.Nodes == at.Node && x.gpu == at.GPU &&
					x.began.Before(m.now)
			}))
			if used[at] && others == 0 {
				again++
			}
			for id := range mem.groups {
				g := mem.groups[id]
				if failed[at] && others > 0 && slices.Contains(g.Refs(), j.Ref) && g.Node == at.Node && g.GPU == at.GPU &&
					g.Decided.After(since[at]) {
					t.Fatalf("job %s is sent to %s gpu %d, whose server failed under %d who are there", j.Ref, at.Node, at.GPU, others)
				}
			}
		}
		seen := map[*mjob]bool{}
		for range 60 {
			for range rapid.SampledFrom([]int{0, 0, 1, 2, 6}).Draw(t, "arrive") {
				mib := rapid.SampledFrom([]float64{500, 2000, 4000}).Draw(t, "MiB")
				run := rapid.IntRange(1, 40).Draw(t, "run")
				user := rapid.SampledFrom([]string{"ann", "ann", "bob"}).Draw(t, "user")
				jobs = append(jobs, m.submit(user, time.Duration(run)*time.Second, app(fmt.Sprint(mib), float64(run), 0.3, mib),
					true))
			}
			must.Get(b.Tick(t.Context()))(t)
			for a := range told {
				failed[a], used[a], since[a] = true, true, m.now
				delete(told, a)
			}
			m.schedule()
			m.advance(time.Second)
			for _, j := range jobs {
				if !j.ended || seen[j] {
					continue
				}
				seen[j] = true
				at := job.GPUAddr{Node: j.Nodes, GPU: j.gpu}
				if on(at) == 0 || rapid.IntRange(0, 2).Draw(t, "fault") > 0 {
					continue
				}
				l.record(m, j)
				r := &l.runs[len(l.runs)-1]
				r.MPSFault, r.GPUs = true, []int{j.gpu}
				told[at] = true
			}
			for a := range failed {
				if on(a) == 0 {
					delete(failed, a)
				}
			}
		}
	})
	if again == 0 {
		t.Error("no GPU was ever used again")
	}
}

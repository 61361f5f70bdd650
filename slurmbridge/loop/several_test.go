package loop_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/loop"
)

// drawn is a cluster of two nodes with several GPUs each, and a learning bridge.
func drawn(t *rapid.T) (m *model, l *ledger, b *loop.Bridge) {
	gpus := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "gpus a node")
	m = newModel(node("n1", gpus, 64), node("n2", gpus, 64))
	l = &ledger{mem: m.mem}
	m.leastLoaded = rapid.Bool().Draw(t, "least loaded")
	b, _ = learning(m, l)
	card := rlcore.TitanXp
	card.SameUser = rapid.Bool().Draw(t, "one user")
	b.Specs = func(string) (rlcore.GPUSpec, bool) { return card, true }
	return m, l, b
}

// round lets jobs come, decides and lets Slurm look at its queue.
func round(t *rapid.T, m *model, b *loop.Bridge) {
	for range rapid.SampledFrom([]int{0, 0, 1, 2, 8}).Draw(t, "arrive") {
		drawJob(t, m, 40).Priority += rapid.SampledFrom([]int64{0, 0, 1000}).Draw(t, "urgent")
	}
	must.Get(b.Tick(t.Context()))(t)
}

// Where Slurm looks at once at what is released, and nothing ends or is refused in between, each member
// lands where it is meant to.
func TestPlacedAsPlanned(t *testing.T) {
	members := 0
	property.Check(t, func(t *rapid.T) {
		m, _, b := drawn(t)
		m.started = func(j *mjob) {
			for _, g := range m.mem.groups {
				for i := range g.Members {
					x := &g.Members[i]
					if x.Ref != j.Ref || x.State != job.MemberWaiting || g.Kind == job.Turn || // any empty GPU will do
						len(g.Members) == 1 && x.Shares == job.Units {
						continue
					}
					if members++; g.Node != j.Nodes || g.GPU != j.gpu {
						t.Fatalf("job %s with %d shares is on %s gpu %d, not on %s gpu %d", j.Ref, x.Shares, j.Nodes, j.gpu, g.Node,
							g.GPU)
					}
				}
			}
		}
		for range 60 {
			round(t, m, b)
			m.schedule()
			m.advance(time.Second)
		}
	})
	must.Equal(t, members > 0, true, "jobs share")
}

// Whatever comes and ends, nobody is sent next to those whose MPS server failed; once they have left, the GPU is used
// again. Who was on the way when it failed, or is led elsewhere, may still land there; its prolog lets it compute
// without MPS.
func TestNobodyJoinsAFailedServer(t *testing.T) {
	again := 0
	property.Check(t, func(t *rapid.T) {
		m, l, b := drawn(t)
		type failure struct {
			since time.Time // as the bridge knows it; zero = from the next look on
			over  bool
		}
		failed, seen := map[job.GPUAddr]*failure{}, map[*mjob]bool{}
		m.started = func(j *mjob) {
			at := job.GPUAddr{Node: j.Nodes, GPU: j.gpu}
			f := failed[at]
			others := len(slices.DeleteFunc(m.on(at.Node, at.GPU), func(x *mjob) bool { return !x.began.Before(m.now) }))
			if f != nil && f.over && others == 0 {
				again++
			}
			for id := range m.mem.groups {
				g := m.mem.groups[id]
				if f != nil && !f.over && !f.since.IsZero() && others > 0 && slices.Contains(g.Refs(), j.Ref) && g.Addr() == at &&
					g.Decided.After(f.since) {
					t.Fatalf("job %s is sent to %s gpu %d, whose server failed under %d who are there", j.Ref, at.Node, at.GPU, others)
				}
			}
		}
		for range 60 {
			round(t, m, b)
			for _, f := range failed {
				if f.since.IsZero() {
					f.since = m.now
				}
			}
			m.schedule()
			m.advance(time.Second)
			for _, j := range m.jobs {
				if !j.ended || seen[j] {
					continue
				}
				seen[j] = true
				at := job.GPUAddr{Node: j.Nodes, GPU: j.gpu}
				if len(m.on(at.Node, at.GPU)) == 0 || rapid.IntRange(0, 2).Draw(t, "fault") > 0 {
					continue
				}
				r := l.record(m, j)
				r.MPSFault, r.GPUs = true, []int{j.gpu}
				failed[at] = &failure{}
			}
			for a, f := range failed {
				f.over = f.over || !f.since.IsZero() && len(m.on(a.Node, a.GPU)) == 0
			}
		}
	})
	must.Equal(t, again > 0, true, "a GPU is used again")
}

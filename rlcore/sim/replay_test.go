package sim

import (
	"math"
	"slices"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// replayed is what follows from a schedule's starts alone.
type replayed struct {
	endS   []float64 // by job
	peak   []float64 // MiB held at most, by GPU
	busyS  []float64 // ∫ busy dt, by GPU
	memMBS []float64 // ∫ MiB dt, by GPU
}

// replay integrates the law over the starts of a Result once more, point by point of the profiles and without anything
// of Sim: the simulated GPU computes like this. It knows nothing of lost runs.
func replay(cfg *Config, r *Result, l *contention.Law) replayed {
	out := replayed{endS: make([]float64, len(r.Jobs))}
	for g := range cfg.GPUs {
		peak, busy, mem := replayGPU(cfg, r, l, g, out.endS)
		out.peak = append(out.peak, peak)
		out.busyS = append(out.busyS, busy)
		out.memMBS = append(out.memMBS, mem)
	}
	return out
}

type player struct {
	job   int
	p     *rlcore.Profile
	point int
	done  float64
	over  float64 // when its limit ends it, s
}

// until is the solo work at which the player's point of its series ends, s.
func (m *player) until() float64 {
	if m.point == len(m.p.Series)-1 {
		return m.p.DurationS
	}
	return min(m.p.DurationS, float64(m.point+1)*m.p.PeriodS)
}

func replayGPU(cfg *Config, r *Result, l *contention.Law, g int, ends []float64) (peak, busyS, memS float64) {
	var todo []int
	for i := range r.Jobs {
		if o := &r.Jobs[i]; o.GPU == g && o.EndS > o.StartS {
			todo = append(todo, i)
		}
	}
	slices.SortStableFunc(todo, func(a, b int) int {
		return int(math.Copysign(1, r.Jobs[a].StartS-r.Jobs[b].StartS))
	})
	var on []player
	now := 0.0
	for len(todo) > 0 || len(on) > 0 {
		// A start at the instant of an end: the end comes first, whatever the last bits of the two ways to add up say.
		for len(todo) > 0 && r.Jobs[todo[0]].StartS <= now+1e-7 {
			i := todo[0]
			p := cfg.Jobs[i].Truth
			if p == nil {
				p = cfg.Jobs[i].Profile
			}
			over := cfg.latestEnd(&cfg.Jobs[i], p.DurationS, r.Jobs[i].StartS)
			on = append(on, player{job: i, p: p, over: over})
			todo = todo[1:]
		}
		mem := 0.0
		var d []contention.Demand
		for i := range on {
			u := on[i].p.Series[on[i].point]
			mem += u.MemMiB
			d = append(d, contention.Demand{
				GPU: u.GPU, Core: u.Core, PCIe: min(1, u.PCIeMBps/cfg.GPUs[g].PCIeMBps), StepS: on[i].p.StepS,
			})
		}
		peak = max(peak, mem)
		slow := l.Slowdowns(nil, d)
		dt := math.Inf(1)
		if len(todo) > 0 {
			dt = r.Jobs[todo[0]].StartS - now
		}
		for i := range on {
			dt = min(dt, on[i].over-now, (on[i].until()-on[i].done)*slow[i])
		}
		dt = max(dt, 0)
		now += dt
		busyS += dt * contention.Busy(d, slow)
		memS += dt * mem
		stay := on[:0]
		for i, m := range on {
			m.done += dt / slow[i]
			if m.done >= m.until()-1e-9 {
				if m.until() >= m.p.DurationS {
					ends[m.job] = now
					continue
				}
				m.point++
			}
			if m.over <= now+1e-7 { // as near as a start counts
				ends[m.job] = now
				continue
			}
			stay = append(stay, m)
		}
		on = stay
	}
	return peak, busyS, memS
}

// same checks a Result that lost no run for want of memory against its replay.
func same(t rapid.TB, cfg *Config, r *Result, l *contention.Law) {
	t.Helper()
	want := replay(cfg, r, l)
	for i := range r.Jobs {
		if got := r.Jobs[i].EndS; got > r.Jobs[i].StartS && math.Abs(got-want.endS[i]) > 1e-6*max(1, got) {
			t.Errorf("job %d ends at %v s, by its start and the law at %v", i, got, want.endS[i])
		}
	}
	var busy, mem float64
	for g := range cfg.GPUs {
		if want.peak[g] > cfg.GPUs[g].MemMiB {
			t.Errorf("GPU %d held %v of %v MiB and no run failed", g, want.peak[g], cfg.GPUs[g].MemMiB)
		}
		busy += want.busyS[g]
		mem += want.memMBS[g] / cfg.GPUs[g].MemMiB
	}
	n := float64(len(cfg.GPUs)) * r.MakespanS
	must.Near(t, r.GPUUtil, busy/n, 1e-6, "use, by the starts and the law")
	must.Near(t, r.MemUtil, mem/n, 1e-6, "memory, by the starts and the law")
}

package sim

import (
	"cmp"
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// scratch keeps the event loop free of allocation.
type scratch struct {
	demands  []contention.Demand
	profiles []*rlcore.Profile
	slow     []float64
	pred     []rlcore.Prediction
	gone     []bool
	window   []int
	idle     []int
	at       []float64
	passed   []int
}

// marks returns n false values.
func (sc *scratch) marks(n int) []bool {
	if cap(sc.gone) < n {
		sc.gone = make([]bool, n)
	}
	sc.gone = sc.gone[:n]
	clear(sc.gone)
	return sc.gone
}

func sortByArrival(order []int, jobs []jobState) {
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(jobs[a].SubmitS, jobs[b].SubmitS) })
}

// segments lays a profile out in stretches of the same use; kept by profile.
func (s *Sim) segments(p *rlcore.Profile) []segment {
	if segs, ok := s.segs[p]; ok {
		return segs
	}
	var segs []segment
	for i, u := range p.Series {
		until := min(float64(i+1)*p.PeriodS, p.DurationS)
		if i == len(p.Series)-1 {
			until = p.DurationS
		}
		if n := len(segs); n > 0 && segs[n-1].use == u {
			segs[n-1].until = until
		} else {
			segs = append(segs, segment{until, u})
		}
		if until >= p.DurationS {
			break
		}
	}
	s.segs[p] = segs
	return segs
}

// sync brings device g forward to now.
func (s *Sim) sync(g int) {
	d := &s.devs[g]
	dt := s.now - d.atS
	if dt <= 0 {
		return
	}
	d.atS = s.now
	s.meet(d, dt)
	d.busyS += d.busy * dt
	d.memMiBS += d.mem * dt
	for i := range d.members {
		m := &d.members[i]
		m.done += dt / m.slow
		m.est += dt / m.estSlow
		d.workS += dt / m.slow
	}
}

// settle gives every member of device g its speed after something has changed,
// and the device its figures.
func (s *Sim) settle(g int) {
	s.sync(g)
	d := &s.devs[g]
	sc := &s.scratch
	sc.demands, sc.profiles = sc.demands[:0], sc.profiles[:0]
	for i := range d.members {
		m := &d.members[i]
		u := &m.segs[m.k].use
		p := s.jobs[m.job].Truth
		dem := contention.Demand{GPU: u.GPU, Core: u.Core, StepS: p.StepS}
		if d.spec.PCIeMBps > 0 {
			dem.PCIe = min(1, u.PCIeMBps/d.spec.PCIeMBps)
		}
		sc.demands = append(sc.demands, dem)
		sc.profiles = append(sc.profiles, p)
	}
	sc.slow = s.truth.Slowdowns(sc.slow, sc.profiles, sc.demands)
	for i := range d.members {
		sc.slow[i] = max(1, sc.slow[i])
		d.members[i].slow = sc.slow[i]
	}
	s.note(g, contention.Busy(sc.demands, sc.slow))
}

// note works out what follows for device g from its members' places and speeds;
// busy is the fraction of time a kernel runs from now on.
func (s *Sim) note(g int, busy float64) {
	d := &s.devs[g]
	mem := d.memOf(len(d.members))
	d.nextS = math.Inf(1)
	for i := range d.members {
		m := &d.members[i]
		d.nextS = min(d.nextS, s.now+max(0, m.segs[m.k].until-m.done)*m.slow)
	}
	s.sample(busy-d.busy, (mem-d.mem)/d.spec.MemMiB, len(d.members)-d.counted)
	d.busy, d.mem, d.counted = busy, mem, len(d.members)
	s.believe(g)
}

// memOf is what the first n members hold, MiB.
func (d *device) memOf(n int) float64 {
	sum := 0.0
	for i := range n {
		m := &d.members[i]
		sum += m.segs[m.k].use.MemMiB
	}
	return sum
}

// believe gives every member of device g the speed a decision is told of.
func (s *Sim) believe(g int) {
	d := &s.devs[g]
	sc := &s.scratch
	if s.cfg.Predictor == nil || len(d.members) == 0 {
		return
	}
	sc.profiles = sc.profiles[:0]
	for i := range d.members {
		p := s.jobs[d.members[i].job].Profile
		if p == nil { // it runs alone
			for k := range d.members {
				d.members[k].estSlow = 1
			}
			return
		}
		sc.profiles = append(sc.profiles, p)
	}
	if cap(sc.pred) < len(d.members) {
		sc.pred = make([]rlcore.Prediction, len(d.members))
	}
	sc.pred = sc.pred[:len(d.members)]
	if pacer, ok := s.cfg.Predictor.(rlcore.Pacer); ok {
		sc.at = sc.at[:0]
		for i := range d.members {
			sc.at = append(sc.at, d.members[i].est)
		}
		pacer.Pace(sc.pred, &d.spec, sc.profiles, sc.at)
	} else {
		s.cfg.Predictor.Predict(sc.pred, &d.spec, sc.profiles)
	}
	for i := range d.members {
		d.members[i].estSlow = max(1, sc.pred[i].Slowdown)
	}
}

// shares is what a member holds of 100: room is left for four more.
const shares = 20

// tell fills the state with how the devices stand now, as far as it doesn't know.
func (s *Sim) tell() {
	if s.toldS == s.now {
		return
	}
	s.toldS, s.state.NowS = s.now, s.now
	for g := range s.devs {
		d, gpu := &s.devs[g], &s.state.GPUs[g]
		if d.told && len(d.members) == 0 {
			continue
		}
		s.sync(g)
		d.told = true
		gpu.Running = gpu.Running[:0]
		for i := range d.members {
			m := &d.members[i]
			j := &s.jobs[m.job]
			done := m.done
			if s.cfg.Predictor != nil && j.Profile != nil {
				done = rlcore.Believed(m.est, j.Profile.DurationS)
			}
			r := rlcore.Running{Job: j.Arrival.Job, DoneS: done, ElapsedS: s.now - m.startS, Shares: shares}
			if j.NoShare || j.Profile == nil {
				r.Whole = true
			}
			gpu.Running = append(gpu.Running, r)
		}
	}
}

// sample notes how busy the devices are from now on, for pictures.
func (s *Sim) sample(busy, mem float64, members int) {
	s.total.GPU += busy
	s.total.Mem += mem
	s.total.Running += members
	if !s.cfg.Track {
		return
	}
	n := float64(len(s.devs))
	x := Sample{AtS: s.now, GPU: s.total.GPU / n, Mem: s.total.Mem / n, Running: s.total.Running}
	if last := len(s.track) - 1; last >= 0 && s.track[last].AtS == x.AtS {
		s.track[last] = x
		return
	}
	s.track = append(s.track, x)
}

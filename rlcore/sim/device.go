package sim

import (
	"math"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// segment is a part of a profile with constant use.
type segment struct {
	until float64 // s of solo work
	use   rlcore.Use
}

// member is a job on a GPU. done and est are s of solo work.
type member struct {
	job     int // index in Sim.jobs
	segs    []segment
	seg     int     // index in segs of the current segment
	done    float64 // true progress
	est     float64 // progress as the Predictor has it
	slow    float64 // true slowdown at this instant
	estSlow float64 // slowdown as the Predictor has it
	startS  float64
	latestS float64 // when its limit ends it; +Inf = never
	met     []interference.Overlap
}

func (m *member) segment() *segment { return &m.segs[m.seg] }

// device is a GPU and its members. Its figures hold at atS; they are brought up to
// date only when the device or a decision needs them.
type device struct {
	spec     rlcore.GPUSpec
	members  []member
	atS      float64
	nextS    float64 // when the next segment or job's time ends, at the present speeds
	workS    float64 // solo work done so far, s
	busy     float64 // fraction of time a kernel runs, at this instant
	mem      float64 // MiB held at this instant
	busyS    float64 // ∫ busy dt
	memMiBS  float64 // ∫ mem dt
	due      bool    // a decision is due
	leftIdle bool    // the last decision left it idle though jobs were pending
	wakeS    float64 // latest time of the next decision
	inState  bool    // Sim.state holds the present members
}

// scratch keeps the event loop free of allocation.
type scratch struct {
	demands  []contention.Demand
	profiles []*rlcore.Profile
	slow     []float64
	pred     []rlcore.Prediction
	window   []int
	at       []float64
	counted  []waiting
}

// segments returns a profile's segments, kept by profile.
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

// WorkS returns the solo work done on GPU g so far, s.
func (s *Sim) WorkS(g int) float64 {
	s.sync(g)
	return s.devs[g].workS
}

// sync brings device g up to date.
func (s *Sim) sync(g int) {
	d := &s.devs[g]
	dt := s.now - d.atS
	if dt <= 0 {
		return
	}
	d.atS = s.now
	d.busyS += d.busy * dt
	d.memMiBS += d.mem * dt
	for i := range d.members {
		m := &d.members[i]
		m.done += dt / m.slow
		m.est += dt / m.estSlow
		d.workS += dt / m.slow
	}
}

// endNext ends what ends now on device g: a segment, or a job at its limit. A
// job that is done at that moment has completed.
func (s *Sim) endNext(g int) {
	s.sync(g)
	d := &s.devs[g]
	k, least := -1, math.Inf(1)
	for i := range d.members {
		m := &d.members[i]
		if left := (m.segment().until - m.done) * m.slow; left < least {
			k, least = i, left
		}
	}
	late := slices.IndexFunc(d.members, func(m member) bool { return m.latestS <= s.now })
	if late >= 0 && least > s.now*sumError {
		s.kill(g, late)
		return
	}
	m := &d.members[k]
	m.done = m.segment().until // without the sums' rounding
	if m.seg+1 == len(m.segs) {
		s.end(g, k)
		return
	}
	was := m.segment().use
	m.seg++
	is := m.segment().use
	grows := is.MemMiB > was.MemMiB
	if is.MemMiB = was.MemMiB; is == was {
		s.update(g, d.busy) // memory alone changes no speed
	} else {
		s.refresh(g)
	}
	if grows && d.mem > d.spec.MemMiB {
		s.fail(g, k)
	}
}

// refresh computes the slowdowns of device g's members, and all that follows, after a change of members or demands.
func (s *Sim) refresh(g int) {
	s.sync(g)
	d := &s.devs[g]
	sc := &s.scratch
	sc.demands, sc.profiles = sc.demands[:0], sc.profiles[:0]
	for i := range d.members {
		m := &d.members[i]
		u := &m.segment().use
		p := s.truth(m.job, g)
		sc.demands = append(sc.demands, demand(u, p, &d.spec))
		sc.profiles = append(sc.profiles, p)
	}
	sc.slow = s.cfg.Truth.Slowdowns(sc.slow, sc.profiles, sc.demands)
	for i := range d.members {
		sc.slow[i] = max(1, sc.slow[i])
		d.members[i].slow = sc.slow[i]
	}
	s.update(g, contention.Busy(sc.demands, sc.slow))
}

// demand is the load that a profile's use puts on a card.
func demand(u *rlcore.Use, p *rlcore.Profile, card *rlcore.GPUSpec) contention.Demand {
	d := contention.Demand{GPU: u.GPU, Core: u.Core, StepS: p.StepS}
	if card.PCIeMBps > 0 {
		d.PCIe = min(1, u.PCIeMBps/card.PCIeMBps)
	}
	return d
}

// update sets what follows for device g from its members' progress and slowdowns;
// busy is the fraction of time a kernel runs from now on.
func (s *Sim) update(g int, busy float64) {
	d := &s.devs[g]
	mem := d.memOf(len(d.members))
	d.nextS = math.Inf(1)
	for i := range d.members {
		m := &d.members[i]
		d.nextS = min(d.nextS, m.latestS, s.now+max(0, m.segment().until-m.done)*m.slow)
	}
	d.busy, d.mem = busy, mem
	s.estimate(g)
}

// memOf returns what the first n members hold, MiB.
func (d *device) memOf(n int) float64 {
	sum := 0.0
	for i := range n {
		sum += d.members[i].segment().use.MemMiB
	}
	return sum
}

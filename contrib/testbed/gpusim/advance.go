package gpusim

import (
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// view is a device as one update sees it: what doesn't change, and a copy of
// what does.
type view struct {
	rec *deviceRec
	dyn dyn

	// scratch of speeds, by group
	demands  []contention.Demand
	slow     []float64
	groups   []group
	combined []contention.Demand
	together []contention.Demand // of one MIG instance
	between  []float64
}

// group is what the device schedules as one: the clients of one MPS server, or
// one process with a context of its own.
type group struct {
	server   int32
	instance uint32
	slots    []int
	idle     float64 // fraction of time none of its kernels runs, as if it were the only group
}

// now is the phase member i is in.
func (v *view) now(i int) *point { return &v.rec.Slot[i].Point[v.dyn.Member[i].Point] }

// computes reports whether member i makes progress.
func (v *view) computes(i int) bool {
	return v.dyn.Member[i].Status == Running && v.rec.Slot[i].Kind != Server
}

// next returns when member i's phase ends at its present speed; +Inf when never.
func (v *view) next(i int) float64 {
	m := &v.dyn.Member[i]
	return v.dyn.T + (v.now(i).Until-m.Done)*m.Slowdown
}

// advance brings the device from the last event to the time to, event by event:
// a phase that ends changes a demand, a demand changes all speeds.
func (v *view) advance(to float64) {
	for v.dyn.T < to {
		event, next := to, -1
		for i := range v.dyn.Member {
			if v.computes(i) {
				if t := v.next(i); t <= event {
					event, next = max(t, v.dyn.T), i
				}
			}
		}
		v.integrate(event - v.dyn.T)
		v.dyn.T = event
		if next < 0 {
			return
		}
		// Exactly, in spite of rounding: the phase has ended.
		v.dyn.Member[next].Done = v.now(next).Until
		v.step(next)
		v.speeds()
	}
}

// step ends member i's phase.
func (v *view) step(i int) {
	m, s := &v.dyn.Member[i], &v.rec.Slot[i]
	if m.Point+1 >= s.Points {
		v.dyn.Finished++
		v.end(i, Finished)
		return
	}
	grows := s.Point[m.Point+1].Mem > s.Point[m.Point].Mem
	m.Point++
	if grows && (v.room(s.Instance) < 0 || !v.allows(s.Pid, 0)) {
		v.dyn.OOM++
		v.end(i, OOM)
	}
}

// end takes member i off the device. Its slot stays its process's until that
// has seen how it ended.
func (v *view) end(i int, how Status) {
	m := &v.dyn.Member[i]
	m.Status, m.EndT = how, v.dyn.T
}

// held is the memory that all processes hold, MiB.
func (v *view) held() float64 {
	sum := v.rec.MemReserved
	for i := range v.present {
		sum += v.now(i).Mem
	}
	return sum
}

// integrate lets dt seconds pass at the present speeds.
func (v *view) integrate(dt float64) {
	if dt <= 0 {
		return
	}
	d := &v.dyn
	d.BusyS += d.GPU * dt
	d.CoreS += d.Core * dt
	d.MemMiBS += d.MemMiB * dt
	d.PCIeMB += d.PCIeMBps * dt
	for i := range v.rec.instances() {
		d.InstBusyS[i] += d.InstGPU[i] * dt
		d.InstCoreS[i] += d.InstCore[i] * dt
	}
	for i := range d.Member {
		m := &d.Member[i]
		if v.computes(i) {
			m.Done += dt / m.Slowdown
		}
	}
}

// speeds gives every member its speed, and the device its figures, from what all members demand
// now.
//
// Clients of one MPS server share the device under the MPS law; processes with a context of their
// own take turns with them under the time-slicing law, in which a server's clients count as one. A
// device with only one of the two kinds so runs under that kind's law alone.
//
// Utilisation is the fraction of time in which any kernel runs. A process with kernels that take a
// fraction u of its time alone leaves the GPU idle for (1−u) of that time, regardless of how long
// the kernels get, so slowed by s it leaves it idle for (1−u)/s of the time. Clients of a server
// overlap independently; processes that take turns don't overlap.
func (v *view) speeds() {
	v.groups = v.groups[:0]
	for i := range v.dyn.Member {
		if v.computes(i) {
			v.join(i)
		}
	}
	v.combined = v.combined[:0]
	for k := range v.groups {
		v.within(&v.groups[k])
	}
	v.turns()
	d := &v.dyn
	d.GPU, d.Core, d.PCIeMBps = 0, 0, 0
	d.InstGPU, d.InstCore = [MaxInstances]float64{}, [MaxInstances]float64{}
	for k := range v.groups {
		g := &v.groups[k]
		turn := v.between[k]
		busy, core := (1-g.idle)/turn*v.fraction(g.slots[0]), 0.0
		for _, i := range g.slots {
			m := &d.Member[i]
			m.Slowdown *= turn
			core += v.now(i).Core / m.Slowdown
			d.PCIeMBps += v.now(i).PCIe / m.Slowdown
		}
		d.GPU += busy
		d.Core += core
		if n := g.instance; n > 0 {
			d.InstGPU[n-1] = min(v.rec.part(n), d.InstGPU[n-1]+busy)
			d.InstCore[n-1] = min(d.InstGPU[n-1], d.InstCore[n-1]+core)
		}
	}
	d.GPU = min(d.GPU, 1)
	d.remember()
	d.Core = min(d.Core, d.GPU) // no SM is busy while no kernel runs
	d.PCIeMBps = min(d.PCIeMBps, v.rec.PCIeMBps)
	busy := 0.0
	for i := range d.Member {
		d.Member[i].Mem, d.Member[i].Busy = 0, 0
	}
	d.PowerW = v.rec.PowerIdle
	for i := range v.present {
		m := &d.Member[i]
		m.Mem = v.now(i).Mem
		m.MemMax = max(m.MemMax, m.Mem)
		if v.computes(i) {
			m.Busy = v.now(i).GPU / m.Slowdown
			busy += m.Busy
		}
		d.PowerW = v.rec.PowerActive + (v.rec.PowerMax-v.rec.PowerActive)*d.GPU
	}
	for i := range d.Member {
		d.Member[i].Busy *= min(1, d.GPU/max(busy, 1e-9)) // kernels that overlap count once
	}
	d.MemMiB = v.held()
	d.MemMaxMiB = max(d.MemMaxMiB, d.MemMiB)
}

// join puts member i into its group.
func (v *view) join(i int) {
	server, in := v.rec.Slot[i].Server, v.rec.Slot[i].Instance
	if server != 0 {
		for k := range v.groups {
			if v.groups[k].server == server && v.groups[k].instance == in {
				v.groups[k].slots = append(v.groups[k].slots, i)
				return
			}
		}
	}
	v.groups = append(v.groups, group{server: server, instance: in, slots: []int{i}})
}

// remember notes a change of the utilisation, for the driver's sample buffer.
func (d *dyn) remember() {
	last := &d.Change[(d.Changes-1)%maxChanges]
	switch {
	case d.Changes > 0 && last.GPU == d.GPU:
	case d.Changes > 0 && last.T == d.T:
		last.GPU = d.GPU
	default:
		d.Change[d.Changes%maxChanges] = change{T: d.T, GPU: d.GPU}
		d.Changes++
	}
}

// turns sets by how much each group is slowed by the other groups that it takes turns with: groups
// of its own MIG instance, since instances run at the same time. They do share the link; its
// contention is left out.
func (v *view) turns() {
	v.between = v.between[:0]
	for range v.groups {
		v.between = append(v.between, 1)
	}
	for in := range uint32(MaxInstances + 1) {
		v.together = v.together[:0]
		for k := range v.groups {
			if v.groups[k].instance == in {
				v.together = append(v.together, v.combined[k])
			}
		}
		if len(v.together) < 2 {
			continue
		}
		v.slow = contention.TimeSlice.Slowdowns(v.slow[:0], v.together)
		n := 0
		for k := range v.groups {
			if v.groups[k].instance == in {
				v.between[k] = max(1, v.slow[n])
				n++
			}
		}
	}
}

// within sets the speeds of a group's members as if it were the only group, and appends the group's
// total demand.
func (v *view) within(g *group) {
	v.demands = v.demands[:0]
	var whole contention.Demand
	for _, i := range g.slots {
		p := v.now(i)
		d := contention.Demand{
			GPU: p.GPU, Core: min(1, p.Core/v.fraction(i)), StepS: v.rec.Slot[i].Step,
			PCIe: min(1, p.PCIe/v.rec.PCIeMBps),
		}
		v.demands = append(v.demands, d)
		whole.Core += d.Core
		whole.PCIe += d.PCIe
		if d.StepS > 0 && (whole.StepS == 0 || d.StepS < whole.StepS) {
			whole.StepS = d.StepS
		}
	}
	v.slow = contention.MPS.Slowdowns(v.slow[:0], v.demands)
	g.idle = 1
	for k, i := range g.slots {
		s := 1.0
		if len(g.slots) > 1 {
			s = max(1, v.slow[k])
		}
		v.dyn.Member[i].Slowdown = s
		g.idle *= (1 - v.demands[k].GPU) / s
	}
	whole.GPU, whole.Core, whole.PCIe = 1-g.idle, min(1, whole.Core), min(1, whole.PCIe)
	v.combined = append(v.combined, whole)
}

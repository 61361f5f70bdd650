package gpusim

import (
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// view is a device as one update sees it: what doesn't change, and a copy of what does.
type view struct {
	*deviceRec
	dyn
}

// now is the phase member i is in.
func (v *view) now(i int) *point { return &v.Slot[i].Point[v.Member[i].Point] }

// computes reports whether member i makes progress.
func (v *view) computes(i int) bool { return v.Member[i].Status == Running && v.Slot[i].Kind != Server }

// advance brings the device from the last event to the time to, event by event:
// a phase that ends changes a demand, a demand changes all speeds.
func (v *view) advance(to float64) {
	for v.T < to {
		event, next := to, -1
		for i := range v.Member {
			if v.computes(i) {
				m := &v.Member[i]
				if end := v.T + (v.now(i).Until-m.DoneS)*m.Slowdown; end <= event {
					event, next = max(end, v.T), i
				}
			}
		}
		v.integrate(event - v.T)
		v.T = event
		if next < 0 {
			return
		}
		v.step(next)
		v.speeds()
	}
}

// step ends member i's phase.
func (v *view) step(i int) {
	m, s, was := &v.Member[i], &v.Slot[i], v.now(i)
	m.DoneS = was.Until // exactly, in spite of rounding
	if m.Point+1 == s.Points {
		v.end(i, Finished)
		return
	}
	m.Point++
	if v.now(i).MemMiB > was.MemMiB && v.room(s.Instance) < 0 {
		v.OOM++
		v.end(i, OOM)
	}
}

// end takes member i off the device. Its slot stays its process's until that has seen how it ended.
func (v *view) end(i int, how Status) { v.Member[i].Status, v.Member[i].EndT = how, v.T }

// integrate lets dt seconds pass at the present speeds.
func (v *view) integrate(dt float64) {
	v.BusyS += v.GPU * dt
	v.CoreS += v.Core * dt
	v.MemMiBS += v.MemMiB * dt
	v.PCIeMB += v.PCIeMBps * dt
	for i := range v.Instances {
		v.InstBusyS[i] += v.InstGPU[i] * dt
		v.InstCoreS[i] += v.InstCore[i] * dt
	}
	for i := range v.Member {
		if v.computes(i) {
			v.Member[i].DoneS += dt / v.Member[i].Slowdown
		}
	}
}

// speeds gives every member its speed, and the device its figures, from what all members demand now.
//
// Clients of one MPS server share the device under the MPS law; processes with a context of their
// own take turns with them under the time-slicing law, in which a server's clients count as one. A
// device with only one of the two kinds so runs under that kind's law alone. MIG instances run at the same time; they
// do share the link, whose contention is left out.
//
// Utilisation is the fraction of time in which any kernel runs. Clients of a server overlap independently; processes
// that take turns don't overlap.
func (v *view) speeds() {
	v.GPU, v.Core, v.PCIeMBps = 0, 0, 0
	for in := range v.Instances + 1 {
		gpu, core := v.take(in)
		v.GPU += gpu
		v.Core += core
		if in > 0 {
			v.InstGPU[in-1] = min(v.part(in), gpu)
			v.InstCore[in-1] = min(v.InstGPU[in-1], core)
		}
	}
	v.GPU = min(v.GPU, 1)
	v.Core = min(v.Core, v.GPU) // no SM is busy while no kernel runs
	v.PCIeMBps = min(v.PCIeMBps, v.LinkMBps)

	busy := 0.0
	v.MemMiB, v.PowerW = 0, v.PowerIdle
	for i := range v.present {
		m := &v.Member[i]
		m.MemMiB, m.Busy = v.now(i).MemMiB, 0
		m.MemMaxMiB = max(m.MemMaxMiB, m.MemMiB)
		if v.computes(i) {
			m.Busy = v.now(i).GPU / m.Slowdown
			busy += m.Busy
		}
		v.MemMiB += m.MemMiB
		v.PowerW = v.PowerActive + (v.PowerMax-v.PowerActive)*v.GPU
	}
	for i := range v.present {
		v.Member[i].Busy *= min(1, v.GPU/max(busy, 1e-9)) // kernels that overlap count once
	}
}

// take sets the speeds of the processes on a MIG instance (0 = on the whole card), and returns which fractions of the
// card's time and SMs they take.
func (v *view) take(in int) (gpu, core float64) {
	groups := v.groups(in)
	demands := make([]contention.Demand, len(groups))
	for k, g := range groups {
		demands[k] = v.within(g)
	}
	for k, turn := range contention.TimeSlice.Slowdowns(nil, demands) {
		gpu += demands[k].GPU / turn * v.part(in)
		for _, i := range groups[k] {
			m := &v.Member[i]
			m.Slowdown *= turn
			core += v.now(i).Core / m.Slowdown
			v.PCIeMBps += v.now(i).PCIeMBps / m.Slowdown
		}
	}
	return gpu, core
}

// groups are the members on a MIG instance that the device schedules as one each: the clients of one MPS server, or
// one process with a context of its own.
func (v *view) groups(in int) (groups [][]int) {
	served := map[int]int{} // by server
	for i, s := range v.present {
		if !v.computes(i) || s.Instance != in {
			continue
		}
		k, there := served[s.Server]
		if s.Server == 0 || !there {
			k = len(groups)
			groups, served[s.Server] = append(groups, nil), k
		}
		groups[k] = append(groups[k], i)
	}
	return groups
}

// within sets the speeds of a group's members as if it were the only group, and returns what all of it demands.
func (v *view) within(group []int) (whole contention.Demand) {
	var demands []contention.Demand
	for _, i := range group {
		p, s := v.now(i), &v.Slot[i]
		d := contention.Demand{
			GPU: p.GPU, Core: min(1, p.Core/v.part(s.Instance)), StepS: s.StepS, PCIe: min(1, p.PCIeMBps/v.LinkMBps),
		}
		demands = append(demands, d)
		whole.Core = min(1, whole.Core+d.Core)
		whole.PCIe = min(1, whole.PCIe+d.PCIe)
		if d.StepS > 0 && (whole.StepS == 0 || d.StepS < whole.StepS) {
			whole.StepS = d.StepS
		}
	}
	slow := contention.MPS.Slowdowns(nil, demands)
	for k, i := range group {
		v.Member[i].Slowdown = slow[k]
	}
	whole.GPU = contention.Busy(demands, slow)
	return whole
}

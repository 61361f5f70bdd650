package sim

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

// turns is the list schedule that says when a foreign job has its turn. Its storage is reused.
type turns struct {
	pending int  // foreign jobs that wait
	known   bool // since the last event and start, none has its turn
	cluster schedule.Cluster
	list    schedule.List
	freeS   []float64 // when each GPU is free, s from now
	idle    []bool    // by GPU: no job runs there, and no pending job has it in the list schedule
}

// Room reports whether the job may use as many GPUs with enough memory as it takes.
func (cfg *Config) Room(j *Arrival) bool {
	mem := cmp.Or(j.Truth, j.Profile).Peak().MemMiB
	nodes := map[string]int{}
	for g := range j.GPUs.Of(len(cfg.GPUs)) {
		if mem <= cfg.GPUs[g].MemMiB {
			nodes[cfg.node(g)]++
		}
	}
	enough := 0
	for _, n := range nodes {
		if n >= max(1, j.PerNode) {
			enough++
		}
	}
	return enough >= max(1, j.Nodes)
}

// node is the name of a GPU's node.
func (cfg *Config) node(g int) string {
	if g < len(cfg.Nodes) {
		return cfg.Nodes[g]
	}
	return "sim"
}

// startForeign starts the foreign jobs that have their turn, as Slurm does without a decision.
func (s *Sim) startForeign() {
	for s.turns.pending > 0 && !s.turns.known {
		s.turns.known = !s.startNextForeign()
	}
}

// startNextForeign starts the first foreign job that has its turn, and reports whether there was one: its GPUs are
// idle, and each job of higher priority has got GPUs of its own.
func (s *Sim) startNextForeign() bool {
	t := &s.turns
	idle := 0
	t.freeS, t.idle = slices.Grow(t.freeS[:0], len(s.devs))[:len(s.devs)],
		slices.Grow(t.idle[:0], len(s.devs))[:len(s.devs)]
	for g := range s.devs {
		t.freeS[g], t.idle[g] = s.freeInS(g), len(s.devs[g].members) == 0
		if t.idle[g] {
			idle++
		}
	}
	if idle == 0 {
		return false
	}
	t.cluster.Divide(len(s.devs), s.cfg.node, len(s.state.Pending),
		func(i int) schedule.Request { return s.state.Pending[i].Request() })
	t.list.Reset(&t.cluster, t.freeS)
	foreign := t.pending
	for p := 0; idle > 0 && foreign > 0; p++ {
		x := s.state.Pending[p].ForSchedule()
		at, on := t.list.Run(x.Request, x.TakesS)
		now := at <= rounding
		for _, g := range on {
			now = now && t.idle[g]
		}
		for _, g := range on {
			if t.idle[g] {
				t.idle[g] = false
				idle--
			}
		}
		if !s.state.Pending[p].Foreign {
			continue
		}
		if foreign--; now {
			s.takeWhole(p, on)
			return true
		}
	}
	return false
}

// freeInS returns when a site expects the jobs of GPU g to have ended, s from now.
func (s *Sim) freeInS(g int) float64 {
	s.sync(g)
	last := 0.0
	for i := range s.devs[g].members {
		m := &s.devs[g].members[i]
		j := &s.jobs[m.job]
		r := rlcore.Running{Job: s.onGPU(j, g), DoneS: s.believed(m), ElapsedS: s.now - m.startS}
		last = max(last, r.LeftS()*m.estSlow)
	}
	return last
}

// takeWhole starts the pending foreign job p on the given GPUs.
func (s *Sim) takeWhole(p int, on []int) {
	i := s.wait[p]
	j := &s.jobs[i]
	j.on = slices.Clone(on)
	s.begin(p, j.on)
	s.dequeue([]int{p})
	for _, g := range j.on {
		s.devs[g].wake()
		s.refresh(g)
	}
	s.decideAll() // all windows have changed
}

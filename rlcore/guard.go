package rlcore

// Prediction is what the interference model expects of one member of a group.
type Prediction struct {
	Slowdown float64 // run time together ÷ alone, ≥ 1
	SD       float64 // standard deviation of Slowdown
	// First: the member meets an application that it was never seen with.
	First bool
}

// Predictor predicts each member's slowdown when the given jobs run together on one GPU. Profiles are never nil.
type Predictor interface {
	// Predict writes one Prediction per member into dst; len(dst) == len(members).
	Predict(dst []Prediction, spec *GPUSpec, members []*Profile)
}

// Pacer is a Predictor that also predicts slowdowns at given positions of the members' runs.
type Pacer interface {
	// Pace writes each member's slowdown at an instant into dst; at[i] is the solo work that member i has done, s.
	// len(dst) == len(members) == len(at).
	Pace(dst []Prediction, spec *GPUSpec, members []*Profile, at []float64)
}

// Forbidder is a Predictor that knows applications that must not share a GPU.
type Forbidder interface {
	Forbidden(spec *GPUSpec, members []*Profile) bool
}

// Guard limits what any policy may do: by the rules, by what is forecast of the members of one GPU, and by the promise
// to all jobs of the queue. It keeps scratch and is not safe for concurrent use.
type Guard struct {
	Rules
	company company
	promise promise
	vetoes  []Veto // by combination, of the last decision
}

// NewGuard returns a guard of the given rules.
func NewGuard(r Rules) *Guard { return &Guard{Rules: r} }

// Check reports whether combination c may join the window's GPU now, on its own merits; Keeps adds the promise to all
// other jobs.
func (g *Guard) Check(w *Window, c Combo) Veto {
	if c == 0 {
		return Allowed
	}
	card := w.Card()
	m := &g.company
	n := len(card.Running) + c.Len()
	switch free := card.FreeShares(); {
	case free == 0 && len(card.Running) > 0 && card.Running[0].Whole:
		return VetoWhole
	case free < c.Len():
		return VetoShares
	case n > g.Members(&card.Spec):
		return VetoClients
	}
	m.gather(&g.Rules, card.Running)
	cpus, hostMem := 0, 0.0
	for i := range w.Jobs {
		if c.Has(i) {
			j := w.Job(i)
			m.members = append(m.members, newMember(j, 0, 0))
			ownCPUs, ownMem := j.Host(n)
			cpus += ownCPUs
			hostMem += ownMem
		}
	}
	if why := m.mayMeet(&card.Spec); why != Allowed {
		return why
	}
	if card.FreeCPUs >= 0 && cpus > card.FreeCPUs || card.FreeHostMemMiB >= 0 && hostMem > card.FreeHostMemMiB {
		return VetoHost
	}
	if n == 1 {
		// Alone, the job has what Slurm would have given it, so its memory isn't the guard's concern.
		return Allowed
	}
	if why := m.mayShare(&g.Rules, &card.Spec, w.State.NowS); why != Allowed {
		return why
	}
	if !m.fits(g.memory(&card.Spec)) {
		return VetoMemory
	}
	return Allowed
}

// Together reports whether the given jobs may run on one card of the given kind at any moment of their runs: the peak
// of each one's memory counts, where Check follows their runs. nowS is State.NowS. It ignores the node's memory and
// cores.
func (g *Guard) Together(spec *GPUSpec, jobs []Running, nowS float64) Veto {
	switch {
	case len(jobs) < 2:
		return Allowed
	case len(jobs) > g.Members(spec):
		return VetoClients
	}
	for i := range jobs {
		if jobs[i].Whole {
			return VetoWhole
		}
	}
	m := &g.company
	m.gather(&g.Rules, jobs)
	if why := m.mayMeet(spec); why != Allowed {
		return why
	}
	if m.peaks() > g.memory(spec) {
		return VetoMemory
	}
	return m.mayShare(&g.Rules, spec, nowS)
}

// Alike is a running job without what Together doesn't look at: jobs of equal values are interchangeable there.
type Alike struct{ r Running }

// Alike returns the job's value.
func (r *Running) Alike() Alike {
	a := Alike{*r}
	j := &a.r.Job
	j.ID, j.SubmitS, j.Priority, j.PlainEndS, j.EarlyS, j.Grace, j.DelayedS = "", 0, 0, 0, 0, 0, 0
	j.CPUs, j.HostMemMiB, j.CPUGrain, j.HostMemDivides = 0, 0, 0, false
	j.GPUs, j.ByModel, j.PlainSlot, j.Foreign, j.PerNode, j.Nodes, j.turn = nil, nil, nil, false, 0, 0, turn{}
	return a
}

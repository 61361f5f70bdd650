package rlcore

import "cmp"

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

// DefaultMaxDelayS is the default of Guard.MaxDelayS, of the setting max_delay and of the simulator, s.
const DefaultMaxDelayS = 300

const (
	defaultMemMargin  = 0.05
	defaultMaxMembers = 5
	defaultSlackS     = 3.0
	defaultTrust      = 1.0
)

// Guard limits what any policy may do. A zero field means its default. A Guard keeps scratch and is not safe for
// concurrent use.
type Guard struct {
	// Predictor predicts slowdowns. nil: every member is assumed to slow by the number of members, the worst that a
	// fair device can do.
	Predictor Predictor
	// MemMargin is the fraction of the device memory that stays free at every moment, for contexts and fragmentation,
	// which NVML reports late. Default 0.05.
	MemMargin float64
	// MaxMembers bounds the jobs on one GPU, running ones included. Default 5.
	MaxMembers int
	// MaxDelayS is the longest that the bridge alone may keep a job waiting, s. Default DefaultMaxDelayS.
	MaxDelayS float64
	// MaxSlowdown is the site's contract for jobs without one. Default 0 = none.
	MaxSlowdown float64
	// SlackS is the error allowed for in a member's position in its run, s: Slurm reports starts in whole seconds, and
	// a released job takes a moment to start. Default 3.
	SlackS float64
	// Trust is how many standard deviations are added to a predicted slowdown before it is compared with a contract, a
	// limit or a due; one more counts for dues and limits at a first meeting. Default 1.
	Trust float64
	// Grace is the part of its solo time by which a job may end later than on plain Slurm. Default DefaultGrace.
	Grace float64
	// ExtendLimit: a job gets the time back that sharing costs it, so its limit bounds its solo work and is no reason
	// to refuse co-runners, unless its LimitFixed is set.
	ExtendLimit bool
	// Bare: ignore limits and dues, as the policies of the literature do.
	Bare bool

	scratch  scratch
	forecast forecast
	promise  promise
	refused  []bool // by combination
}

// Rules copies g's rules to another guard.
func (g *Guard) Rules(of *Guard) {
	of.Predictor, of.MemMargin, of.MaxMembers, of.MaxDelayS = g.Predictor, g.MemMargin, g.MaxMembers, g.MaxDelayS
	of.MaxSlowdown, of.SlackS, of.Trust, of.Grace, of.Bare, of.ExtendLimit = g.MaxSlowdown, g.SlackS, g.Trust, g.Grace, g.Bare, g.ExtendLimit
}

// scratch saves Check allocations. By member, the running jobs first:
type scratch struct {
	jobs    []*Job
	elapsed []float64 // s
	members []*Profile
	tracks  []track
	pred    []Prediction
	limits  []float64 // when it must have ended, s from now
	work    []float64
	ends    []float64
}

// Members returns how many jobs may share a GPU of the given kind.
func (g *Guard) Members(spec *GPUSpec) int {
	n := cmp.Or(g.MaxMembers, defaultMaxMembers)
	if spec.MaxClients > 0 {
		n = min(n, spec.MaxClients)
	}
	return n
}

// Check reports whether combination c may join the window's GPU now, on its own merits; Combos adds the promise to all
// other jobs.
func (g *Guard) Check(w *Window, c Combo) Refusal {
	if c == 0 {
		return Allowed
	}
	card := w.Card()
	n := len(card.Running) + c.Len()
	switch free := card.FreeShares(); {
	case free == 0 && len(card.Running) > 0 && card.Running[0].Whole:
		return RefusedWhole
	case free < c.Len():
		return RefusedShares
	case n > g.Members(&card.Spec):
		return RefusedClients
	}
	g.gather(card.Running)
	cpus, hostMem := 0, 0.0
	for i := range w.Jobs {
		if c.Has(i) {
			j := w.Job(i)
			g.scratch.add(j, 0, g.newTrack(j.Profile, 0, 0))
			itsCPUs, itsMem := j.Host(n)
			cpus, hostMem = cpus+itsCPUs, hostMem+itsMem
		}
	}
	if why := g.scratch.meet(&card.Spec); why != Allowed {
		return why
	}
	if card.FreeCPUs >= 0 && cpus > card.FreeCPUs || card.FreeHostMemMiB >= 0 && hostMem > card.FreeHostMemMiB {
		return RefusedHost
	}
	if n == 1 {
		// Alone, the job has what Slurm would have given it, so its memory isn't the guard's concern.
		return Allowed
	}
	if why := g.together(&card.Spec, w.State.NowS); why != Allowed {
		return why
	}
	if !g.fits(&card.Spec) {
		return RefusedMemory
	}
	return Allowed
}

// Together reports whether the given jobs may run on one card of the given kind at any moment of their runs: the peak
// of each one's memory counts, where Check follows their runs. nowS is State.NowS. It ignores the node's memory and cores.
func (g *Guard) Together(spec *GPUSpec, jobs []Running, nowS float64) Refusal {
	switch {
	case len(jobs) < 2:
		return Allowed
	case len(jobs) > g.Members(spec):
		return RefusedClients
	}
	for i := range jobs {
		if jobs[i].Whole {
			return RefusedWhole
		}
	}
	g.gather(jobs)
	if why := g.scratch.meet(spec); why != Allowed {
		return why
	}
	if g.peaks() > g.memory(spec) {
		return RefusedMemory
	}
	return g.together(spec, nowS)
}

// gather sets the scratch to running jobs.
func (g *Guard) gather(running []Running) {
	sc := &g.scratch
	sc.jobs, sc.elapsed, sc.members, sc.tracks = sc.jobs[:0], sc.elapsed[:0], sc.members[:0], sc.tracks[:0]
	for i := range running {
		r := &running[i]
		tr := g.newTrack(r.Profile, r.DoneS, r.ElapsedS)
		if r.Profile != nil && r.MemLimitMiB > 0 {
			tr.spare = max(0, r.MemLimitMiB-r.Profile.NeedMiB(g.margin()))
		}
		sc.add(&r.Job, r.ElapsedS, tr)
	}
}

func (sc *scratch) add(j *Job, elapsed float64, tr track) {
	sc.jobs, sc.elapsed, sc.members, sc.tracks = append(sc.jobs, j), append(sc.elapsed, elapsed), append(sc.members, j.Profile), append(sc.tracks, tr)
}

// meet checks the members' owners and arrays, and that each is known.
func (sc *scratch) meet(spec *GPUSpec) Refusal {
	first, arrayOnly, mixed := sc.jobs[0], false, false
	for _, j := range sc.jobs {
		arrayOnly, mixed = arrayOnly || j.ArrayOnly, mixed || j.Array == "" || j.Array != first.Array
		switch shared := len(sc.jobs) > 1; {
		case shared && j.NoShare:
			return RefusedNoShare
		case shared && j.Profile == nil:
			return RefusedUnknown
		case shared && (j.Profile.Busy != nil || j.Profile.HeldMiB > 0) && !spec.MemLimits:
			return RefusedUnheld
		case shared && arrayOnly && mixed:
			return RefusedArray
		case spec.SameUser && j.User != first.User:
			return RefusedUser
		case shared && j.Rank != first.Rank:
			return RefusedRank
		}
	}
	return Allowed
}

// together checks the predictions for several members of known profile: they may meet, and keep contracts and limits.
func (g *Guard) together(spec *GPUSpec, nowS float64) Refusal {
	sc := &g.scratch
	clients := 0
	for _, p := range sc.members {
		clients += p.Clients()
	}
	if spec.MaxClients > 0 && clients > spec.MaxClients {
		return RefusedClients
	}
	if f, ok := g.Predictor.(Forbidder); ok && f.Forbidden(spec, sc.members) {
		return RefusedForbidden
	}
	sc.pred = resize(sc.pred, len(sc.members))
	g.predictGroup(sc.pred, spec, sc.members)
	for k, j := range sc.jobs {
		worst := g.worst(&sc.pred[k])
		sc.tracks[k].slowest = worst
		if limit := cmp.Or(j.MaxSlowdown, g.MaxSlowdown); limit != 0 && worst > limit {
			return RefusedContract
		}
	}
	if !g.keepsSessions(spec) {
		return RefusedContract
	}
	if !g.Bare && !g.keepsLimits(spec, nowS) {
		return RefusedLimit
	}
	return Allowed
}

// keepsSessions reports whether each interactive session in the scratch keeps its contract while it computes: for most
// of the time it doesn't, and slows no member.
func (g *Guard) keepsSessions(spec *GPUSpec) bool {
	sc := &g.scratch
	for k, j := range sc.jobs {
		usual := sc.members[k]
		if usual.Busy == nil {
			continue
		}
		sc.members[k] = usual.Busy
		g.predictGroup(sc.pred, spec, sc.members)
		sc.members[k] = usual
		if limit := cmp.Or(j.MaxSlowdown, g.MaxSlowdown); limit != 0 && g.worst(&sc.pred[k]) > limit {
			return false
		}
	}
	return true
}

// trust is how many standard deviations are added to what is predicted: Trust, or its default.
func (g *Guard) trust() float64 { return cmp.Or(g.Trust, defaultTrust) }

// worst is the slowdown that contracts, limits and dues allow for.
func (g *Guard) worst(p *Prediction) float64 {
	return max(1, p.Slowdown+g.trust()*p.SD)
}

// margin is MemMargin or its default.
func (g *Guard) margin() float64 { return cmp.Or(g.MemMargin, defaultMemMargin) }

// memory is how much of a card's memory jobs may hold together, MiB.
func (g *Guard) memory(spec *GPUSpec) float64 { return spec.MemMiB * (1 - g.margin()) }

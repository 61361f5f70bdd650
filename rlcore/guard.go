package rlcore

import "cmp"

// Prediction is what the interference model expects of one member of a group.
type Prediction struct {
	Slowdown float64 // run time together ÷ alone, ≥ 1
	SD       float64 // standard deviation of Slowdown
}

// Predictor predicts each member's slowdown when the given jobs run together on
// one GPU. Profiles are never nil.
type Predictor interface {
	// Predict writes one Prediction per member into dst; len(dst) == len(members).
	Predict(dst []Prediction, spec *GPUSpec, members []*Profile)
}

// Forbidder is a Predictor that knows applications that must not share a GPU.
type Forbidder interface {
	Forbidden(spec *GPUSpec, members []*Profile) bool
}

// DefaultMaxDelayS is the default of Guard.MaxDelayS, of the setting max_delay and of
// the simulator, s.
const DefaultMaxDelayS = 300

const (
	defaultMemMargin  = 0.05
	defaultMaxMembers = 5
	defaultSlackS     = 3.0
	defaultTrust      = 1.0
)

// Guard limits what any policy may do. A zero field means its default. A Guard
// keeps scratch and is not safe for concurrent use.
type Guard struct {
	// Predictor predicts slowdowns. nil: every member is assumed to slow by the
	// number of members, the worst that a fair device can do.
	Predictor Predictor
	// MemMargin is the fraction of the device memory that stays free at every
	// moment, for contexts and fragmentation, which NVML reports late. Default 0.05.
	MemMargin float64
	// MaxMembers bounds the jobs on one GPU, running ones included. Default 5.
	MaxMembers int
	// MaxDelayS is the longest that the bridge alone may keep a job waiting, s.
	// Default DefaultMaxDelayS.
	MaxDelayS float64
	// MaxSlowdown is the site's contract for jobs without one. Default 0 = none.
	MaxSlowdown float64
	// SlackS is the error allowed for in a member's position in its run, s: Slurm
	// reports starts in whole seconds, and a released job takes a moment to start.
	// Default 3.
	SlackS float64
	// Trust is how many standard deviations are added to a predicted slowdown
	// before it is compared with a contract, a limit or a due. Default 1.
	Trust float64
	// Grace is by what part of its own solo time a job may end later than on plain Slurm.
	// Default DefaultGrace.
	Grace float64
	// ExtendLimit: a job gets the time back that sharing costs it, so its limit bounds the solo work that it may
	// do, and is no reason to refuse co-runners; but for jobs whose LimitFixed says so.
	ExtendLimit bool
	// Bare: limits and dues don't count, as for the policies of the literature.
	Bare bool

	scratch  scratch
	forecast forecast
	promise  promise
	refused  []bool // by combination
	meeting  *Window
}

// Rules sets another guard's rules to g's.
func (g *Guard) Rules(of *Guard) {
	of.Predictor, of.MemMargin, of.MaxMembers, of.MaxDelayS = g.Predictor, g.MemMargin, g.MaxMembers, g.MaxDelayS
	of.MaxSlowdown, of.SlackS, of.Trust, of.Grace, of.Bare, of.ExtendLimit = g.MaxSlowdown, g.SlackS, g.Trust, g.Grace, g.Bare, g.ExtendLimit
}

// scratch keeps Check free of allocation.
type scratch struct {
	members []*Profile
	pred    []Prediction
	tracks  []track
	at      []float64
	pace    []Prediction
	limits  []float64 // by member: when it must have ended, s from now
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

// Check reports whether combination c may join the window's GPU now, on its own
// merits; Combos adds the promise to all other jobs.
func (g *Guard) Check(w *Window, c Combo) Refusal {
	if c == 0 {
		return Allowed
	}
	card := w.Card()
	n := len(card.Running) + c.Len()
	if why := g.checkCount(card, c.Len(), n); why != Allowed {
		return why
	}
	if why := g.admit(w, c, n); why != Allowed {
		return why
	}
	if n == 1 {
		// Alone, the job has what Slurm would have given it, so its memory isn't
		// the guard's concern.
		return Allowed
	}
	if f, ok := g.Predictor.(Forbidder); ok && f.Forbidden(&card.Spec, g.scratch.members) {
		return RefusedForbidden
	}
	g.predict(&card.Spec)
	if !g.keepsContracts(w, c) {
		return RefusedContract
	}
	if !g.Bare && !g.keepsLimits(w, c) {
		return RefusedLimit
	}
	if !g.fits(&card.Spec) {
		return RefusedMemory
	}
	return Allowed
}

// checkCount checks shares and the number of members: joining jobs, n in all.
func (g *Guard) checkCount(card *GPU, joining, n int) Refusal {
	free := card.FreeShares()
	switch {
	case free == 0 && len(card.Running) > 0 && card.Running[0].Whole:
		return RefusedWhole
	case free < joining:
		return RefusedShares
	case n > g.Members(&card.Spec):
		return RefusedClients
	}
	return Allowed
}

// admit checks each member's owner, array and knowledge, and what the joining jobs
// take of the node. It fills the scratch's members and tracks: the running jobs,
// then those of c.
func (g *Guard) admit(w *Window, c Combo, n int) Refusal {
	card := w.Card()
	sc := &g.scratch
	sc.members, sc.tracks = sc.members[:0], sc.tracks[:0]
	slack := cmp.Or(g.SlackS, defaultSlackS)
	party := party{shared: n > 1, sameUser: card.Spec.SameUser}
	for i := range card.Running {
		r := &card.Running[i]
		if why := party.join(&r.Job); why != Allowed {
			return why
		}
		sc.add(r.Profile, r.DoneS, r.ElapsedS, slack)
		if r.Profile != nil && r.MemLimitMiB > 0 {
			spare := r.MemLimitMiB - r.Profile.NeedMiB(cmp.Or(g.MemMargin, defaultMemMargin))
			sc.tracks[len(sc.tracks)-1].spare = max(0, spare)
		}
	}
	cpus, hostMem := 0, 0.0
	for i := range w.Jobs {
		if !c.Has(i) {
			continue
		}
		j := w.Job(i)
		if why := party.join(j); why != Allowed {
			return why
		}
		sc.add(j.Profile, 0, 0, slack)
		cpus += j.CPUs
		hostMem += j.HostMemMiB
	}
	if card.FreeCPUs >= 0 && cpus > card.FreeCPUs ||
		card.FreeHostMemMiB >= 0 && hostMem > card.FreeHostMemMiB {
		return RefusedHost
	}
	return Allowed
}

// add adds a member of known profile.
func (sc *scratch) add(p *Profile, done, elapsed, slack float64) {
	if p != nil {
		sc.members = append(sc.members, p)
		sc.tracks = append(sc.tracks, newTrack(p, done, elapsed, slack))
	}
}

// party is the set of members admitted so far, as far as owners and arrays matter.
type party struct {
	shared, sameUser bool
	user             string
	first            *Job
	arrayOnly, mixed bool // one member shares with its array only; members are of several arrays
}

// join admits one more member, or says why it can't share with those before it.
func (p *party) join(j *Job) Refusal {
	if p.shared {
		if j.NoShare {
			return RefusedNoShare
		}
		if j.Profile == nil {
			return RefusedUnknown
		}
		if p.first == nil {
			p.first = j
		}
		p.arrayOnly = p.arrayOnly || j.ArrayOnly
		p.mixed = p.mixed || j.Array == "" || j.Array != p.first.Array
		if p.arrayOnly && p.mixed {
			return RefusedArray
		}
	}
	if p.sameUser {
		if p.user != "" && p.user != j.User {
			return RefusedUser
		}
		p.user = j.User
	}
	return Allowed
}

// predict fills the scratch's predictions for its members.
func (g *Guard) predict(spec *GPUSpec) {
	sc := &g.scratch
	if cap(sc.pred) < len(sc.members) {
		sc.pred = make([]Prediction, len(sc.members))
	}
	sc.pred = sc.pred[:len(sc.members)]
	g.predictGroup(sc.pred, spec, sc.members)
}

// trust is how many standard deviations are added to what is predicted: Trust, or its default.
func (g *Guard) trust() float64 { return cmp.Or(g.Trust, defaultTrust) }

// keepsContracts reports whether no predicted slowdown exceeds its job's contract.
// It sets each track's slowest pace.
func (g *Guard) keepsContracts(w *Window, c Combo) bool {
	sc := &g.scratch
	trust := g.trust()
	k := 0
	keeps := func(j *Job) bool {
		p := &sc.pred[k]
		worst := max(1, p.Slowdown+trust*p.SD)
		sc.tracks[k].slowest = worst
		k++
		limit := j.MaxSlowdown
		if limit == 0 {
			limit = g.MaxSlowdown
		}
		return limit == 0 || worst <= limit
	}
	card := w.Card()
	for i := range card.Running {
		if !keeps(&card.Running[i].Job) {
			return false
		}
	}
	for i := range w.Jobs {
		if c.Has(i) && !keeps(w.Job(i)) {
			return false
		}
	}
	return true
}

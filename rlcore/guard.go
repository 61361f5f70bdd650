package rlcore

import (
	"fmt"
	"math"
	"math/bits"
)

// Prediction is what the interference model expects of one member of a group.
type Prediction struct {
	Slowdown float64 // run time together ÷ alone, ≥ 1
	SD       float64 // standard deviation of Slowdown
}

// Predictor foretells each member's slowdown when the given jobs run together
// on one GPU. Profiles are never nil.
type Predictor interface {
	// Predict writes one Prediction per member into dst; len(dst) == len(members).
	Predict(dst []Prediction, spec *GPUSpec, members []*Profile)
}

// Guard is what no policy can overrule. A zero field means its default.
type Guard struct {
	// Predictor is asked for slowdowns. nil: every member is taken to slow by
	// the number of members, the worst a fair device can do.
	Predictor Predictor
	// MemMargin is the fraction of the device memory that stays free at every
	// moment. Default 0.05: contexts and fragmentation that NVML shows late.
	MemMargin float64
	// MaxMembers on one GPU, running ones counted. Default 5.
	MaxMembers int
	// MaxPassOver is how many decisions may start jobs of lower priority past a
	// job that could have started. Default 5.
	MaxPassOver int
	// MaxDelayS is the longest a job may be kept waiting by the bridge alone, s.
	// Default DefaultMaxDelayS.
	MaxDelayS float64
	// MaxSlowdown is the site's contract for jobs that name none. Default 0 = none.
	MaxSlowdown float64
	// SlackS is by how much a member's place in its run may be misjudged, s: Slurm
	// tells starts in whole seconds, and a released job takes a moment to start.
	// Default 3.
	SlackS float64
	// Trust is how many standard deviations of a prediction are added before it
	// is held against a contract. Default 1.
	Trust float64

	scratch scratch
	refused []bool // by combination
}

// DefaultMaxDelayS is the default of Guard.MaxDelayS, of the setting max_delay and of
// the simulator, s.
const DefaultMaxDelayS = 300

// scratch keeps Allow free of allocation.
type scratch struct {
	members []*Profile
	pred    []Prediction
	tracks  []track
	at      []float64
	pace    []Prediction
}

func orDefault(v, d float64) float64 {
	if v == 0 {
		return d
	}
	return v
}

func orDefaultInt(v, d int) int {
	if v == 0 {
		return d
	}
	return v
}

// Refusal says why the guard refuses a combination; "" = allowed.
type Refusal string

// The guard's reasons, as `why` prints them.
const (
	Allowed          Refusal = ""
	RefusedWhole     Refusal = "the GPU is taken whole"
	RefusedShares    Refusal = "no share of the GPU is free"
	RefusedUnknown   Refusal = "an application without a profile runs alone first"
	RefusedNoShare   Refusal = "a job asks not to share"
	RefusedArray     Refusal = "a job shares only with tasks of its own array"
	RefusedUser      Refusal = "this GPU serves one user at a time"
	RefusedClients   Refusal = "more jobs than the GPU serves at a time"
	RefusedHost      Refusal = "the node has not enough free cores or memory"
	RefusedMemory    Refusal = "GPU memory would not suffice at some moment"
	RefusedContract  Refusal = "a job would slow down more than its contract allows"
	RefusedPassOver  Refusal = "a job of higher priority has been passed over often enough"
	RefusedDelay     Refusal = "a job has been kept waiting by the bridge long enough"
	RefusedForbidden Refusal = "these applications may not run together"
)

// Forbidder is a Predictor that knows of members that must not meet, because it
// saw them fail together or was told so.
type Forbidder interface {
	Forbidden(spec *GPUSpec, members []*Profile) bool
}

// Check says whether combination c of the window may join the window's GPU now,
// on the combination's own merits. Fairness towards jobs outside c is Combos'.
func (g *Guard) Check(w *Window, c Combo) Refusal {
	if c == 0 {
		return Allowed
	}
	card := w.Card()
	free := card.FreeShares()
	n := len(card.Running) + c.Len()
	switch {
	case free == 0 && len(card.Running) > 0 && card.Running[0].Whole:
		return RefusedWhole
	case free < c.Len():
		return RefusedShares
	case n > g.Members(&card.Spec):
		return RefusedClients
	}
	cpus, hostMem := 0, 0.0
	user := ""
	var first *Job
	arrayOnly, mixed := false, false
	sc := &g.scratch
	sc.members, sc.tracks = sc.members[:0], sc.tracks[:0]
	slack := orDefault(g.SlackS, 3)
	add := func(j *Job, done, elapsed float64) Refusal {
		if n > 1 {
			if j.NoShare {
				return RefusedNoShare
			}
			if j.Profile == nil {
				return RefusedUnknown
			}
			if first == nil {
				first = j
			}
			arrayOnly = arrayOnly || j.ArrayOnly
			mixed = mixed || j.Array == "" || j.Array != first.Array
			if arrayOnly && mixed {
				return RefusedArray
			}
		}
		if card.Spec.SameUser {
			if user != "" && user != j.User {
				return RefusedUser
			}
			user = j.User
		}
		if j.Profile != nil {
			sc.members = append(sc.members, j.Profile)
			sc.tracks = append(sc.tracks, newTrack(j.Profile, done, elapsed, slack))
		}
		return Allowed
	}
	for i := range card.Running {
		r := &card.Running[i]
		if why := add(&r.Job, r.DoneS, r.ElapsedS); why != Allowed {
			return why
		}
	}
	for i := range w.Jobs {
		if !c.Has(i) {
			continue
		}
		j := w.Job(i)
		if why := add(j, 0, 0); why != Allowed {
			return why
		}
		cpus += j.CPUs
		hostMem += j.HostMemMiB
	}
	if card.FreeCPUs >= 0 && cpus > card.FreeCPUs ||
		card.FreeHostMemMiB >= 0 && hostMem > card.FreeHostMemMiB {
		return RefusedHost
	}
	if n == 1 {
		// Alone the job has what Slurm would have given it: its memory is its
		// own affair.
		return Allowed
	}
	if f, ok := g.Predictor.(Forbidder); ok && f.Forbidden(&card.Spec, sc.members) {
		return RefusedForbidden
	}
	g.predict(&card.Spec)
	trust := orDefault(g.Trust, 1)
	k := 0
	contract := func(j *Job) bool {
		p := sc.pred[k]
		worst := max(1, p.Slowdown+trust*p.SD)
		sc.tracks[k].slowest = worst
		k++
		limit := orDefault(j.MaxSlowdown, g.MaxSlowdown)
		return limit == 0 || worst <= limit
	}
	for i := range card.Running {
		if !contract(&card.Running[i].Job) {
			return RefusedContract
		}
	}
	for i := range w.Jobs {
		if c.Has(i) && !contract(w.Job(i)) {
			return RefusedContract
		}
	}
	if !g.fits(&card.Spec) {
		return RefusedMemory
	}
	return Allowed
}

func (g *Guard) predict(spec *GPUSpec) {
	sc := &g.scratch
	if cap(sc.pred) < len(sc.members) {
		sc.pred = make([]Prediction, len(sc.members))
	}
	sc.pred = sc.pred[:len(sc.members)]
	if g.Predictor == nil {
		for i := range sc.pred {
			sc.pred[i] = Prediction{Slowdown: float64(len(sc.members))}
		}
		return
	}
	g.Predictor.Predict(sc.pred, spec, sc.members)
	for i := range sc.pred {
		// A predictor that knows nothing must not open the door.
		if p := sc.pred[i]; math.IsNaN(p.Slowdown) || math.IsNaN(p.SD) {
			sc.pred[i] = Prediction{Slowdown: float64(len(sc.members))}
		}
	}
}

// Combos appends to dst every combination of the window that is allowed on its
// GPU now, in ascending order, and combo 0 (wait) where waiting is allowed. What
// a combination is refused for, a larger one is not asked about: nobody's company
// gets better by one more.
//
// Fairness: while a job has been passed over MaxPassOver times, or kept waiting
// by the bridge for MaxDelayS, only combinations with it are allowed, as long as
// there is one; waiting isn't. The job of highest priority goes first, and nobody
// goes past another such job. Where such a job needs the GPU to be empty first,
// nobody joins who is there; see Drains.
func (g *Guard) Combos(dst []Combo, w *Window) []Combo {
	must, _ := g.Must(w)
	drains := g.Drains(w)
	if drains >= 0 && (must < 0 || drains < must) {
		return append(dst, 0)
	}
	start := len(dst)
	all := 1 << len(w.Jobs)
	if cap(g.refused) < all {
		g.refused = make([]bool, all)
	}
	refused := g.refused[:all]
	clear(refused)
	due := Combo(0) // those that nobody may go past
	if drains >= 0 {
		due = 1 << drains
	}
	for i := range w.Jobs {
		if must >= 0 && g.overdue(w.Job(i)) != Allowed && g.Check(w, 1<<i) == Allowed {
			due |= 1 << i
		}
	}
	for c := Combo(1); int(c) < all; c++ {
		refused[c] = refused[c&(c-1)] || refused[c&^(1<<(bits.Len32(uint32(c))-1))] || g.Check(w, c) != Allowed
		if !refused[c] && (must < 0 || c.Has(must)) && inFront(due&^c) >= c {
			dst = append(dst, c)
		}
	}
	if must < 0 {
		dst = append(dst, 0)
		copy(dst[start+1:], dst[start:])
		dst[start] = 0
	}
	return dst
}

// inFront returns all jobs in front of the first of c, all there are where c is empty.
func inFront(c Combo) Combo { return c&-c - 1 }

// Members is how many jobs may be on a GPU of that kind at a time.
func (g *Guard) Members(spec *GPUSpec) int {
	n := orDefaultInt(g.MaxMembers, 5)
	if spec.MaxClients > 0 {
		n = min(n, spec.MaxClients)
	}
	return n
}

// DelayLimitS is MaxDelayS or its default, s.
func (g *Guard) DelayLimitS() float64 { return orDefault(g.MaxDelayS, DefaultMaxDelayS) }

// overdue says why a job has waited long enough, Allowed = it hasn't.
func (g *Guard) overdue(j *Job) Refusal {
	switch {
	case j.DelayedS >= g.DelayLimitS():
		return RefusedDelay
	case j.PassedOver >= orDefaultInt(g.MaxPassOver, 5):
		return RefusedPassOver
	}
	return Allowed
}

// Must returns the window job that has to be among the next to start, and why;
// -1 when there is none. A job that can't start on this GPU now, not even by
// itself, is not among them: the GPU's present load must end first; see Drains.
func (g *Guard) Must(w *Window) (int, Refusal) {
	for i := range w.Jobs {
		why := g.overdue(w.Job(i))
		if why != Allowed && g.Check(w, 1<<i) == Allowed {
			return i, why
		}
	}
	return -1, Allowed
}

// Drains returns the window job for which the window's GPU is to become empty, -1
// when there is none: one that has waited long enough, can't start beside those
// who run, and will have this GPU first of all that it may use. As long as others
// joined them it would wait for ever.
func (g *Guard) Drains(w *Window) int {
	card := w.Card()
	if len(card.Running) == 0 {
		return -1
	}
	for i := range w.Jobs {
		j := w.Job(i)
		if g.overdue(j) != Allowed && g.Check(w, 1<<i) != Allowed && w.State.first(j) == w.GPU {
			return i
		}
	}
	return -1
}

// first is the GPU that is expected to be empty before all others that the job may
// use, by index; -1 where that is known of none.
func (s *State) first(j *Job) int {
	first, at := -1, math.Inf(1)
	for k := range s.GPUs {
		if !j.MayUse(k) || !s.GPUs[k].holds(j) {
			continue
		}
		if t := s.GPUs[k].EmptyInS(); t < at {
			first, at = k, t
		}
	}
	return first
}

// holds reports whether the GPU's node would have the cores and the memory for a job
// if all who are on the GPU had ended; others on the node keep what they have.
func (g *GPU) holds(j *Job) bool {
	cpus, mem := g.FreeCPUs, g.FreeHostMemMiB
	for i := range g.Running {
		if cpus >= 0 {
			cpus += g.Running[i].CPUs
		}
		if mem >= 0 {
			mem += g.Running[i].HostMemMiB
		}
	}
	return (cpus < 0 || j.CPUs <= cpus) && (mem < 0 || j.HostMemMiB <= mem)
}

// Passed appends to dst the jobs of the window (by position) that combination c goes past: jobs
// of higher priority than some of c's, that could start here now, or that wait for this
// GPU, the first to be empty, which c would keep from being so when it would. It is
// never more often than MaxPassOver that Combos allows to go past a job.
func (g *Guard) Passed(dst []int, w *Window, c Combo) []int {
	card := w.Card()
	longer := false
	for i := range w.Jobs {
		if c.Has(i) && len(card.Running) > 0 && w.Job(i).expectedS() > card.EmptyInS() {
			longer = true
		}
	}
	for i := range bits.Len32(uint32(c)) {
		if !c.Has(i) && (g.Check(w, 1<<i) == Allowed || longer && w.State.first(w.Job(i)) == w.GPU) {
			dst = append(dst, i)
		}
	}
	return dst
}

// String makes a Refusal printable where it is Allowed.
func (r Refusal) String() string {
	if r == Allowed {
		return "allowed"
	}
	return string(r)
}

// Explain lists, for people, each single and each pair of the window that the
// guard refuses now, and why. It is for `why`, not for the hot path.
func (g *Guard) Explain(w *Window) []string {
	var out []string
	for c := Combo(1); c < 1<<len(w.Jobs); c++ {
		if c.Len() > 2 {
			continue
		}
		if why := g.Check(w, c); why != Allowed {
			names := ""
			for i := range w.Jobs {
				if c.Has(i) {
					if names != "" {
						names += " with "
					}
					names += w.Job(i).ID
				}
			}
			out = append(out, fmt.Sprintf("%s: %s", names, why))
		}
	}
	return out
}

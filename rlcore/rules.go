package rlcore

import (
	"cmp"
	"math"
)

// DefaultMaxDelayS is the default of Rules.MaxDelayS, of the setting max_delay and of the simulator, s.
const DefaultMaxDelayS = 300

// DefaultGrace and DefaultMaxSlowdown are the contract of a job that says nothing: it may end later than on plain Slurm
// by a tenth of its own solo time, and run 2.5 times as long.
const (
	DefaultGrace       = 0.1
	DefaultMaxSlowdown = 2.5
)

const (
	defaultMemMargin  = 0.05
	defaultMaxMembers = 5
	defaultTrust      = 1.0
)

// Rules are what the site allows, and how far predictions are trusted. A zero field means its default.
type Rules struct {
	// Predictor predicts slowdowns. nil: every member is assumed to slow by the number of members, the worst that a fair
	// device can do.
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
	// Trust is how many standard deviations are added to a predicted slowdown before it is compared with a contract, a
	// limit or a due. Default 1.
	Trust float64
	// Grace is the part of its solo time by which a job may end later than on plain Slurm. Default DefaultGrace.
	Grace float64
	// ExtendLimit: a job gets the time back that sharing costs it, so its limit bounds its solo work and is no reason to
	// refuse co-runners, unless its LimitFixed is set.
	ExtendLimit bool
	// Bare: ignore limits and dues, as the policies of the literature do.
	Bare bool
}

// Members returns how many jobs may share a GPU of the given kind.
func (r *Rules) Members(spec *GPUSpec) int {
	n := cmp.Or(r.MaxMembers, defaultMaxMembers)
	if spec.MaxClients > 0 {
		n = min(n, spec.MaxClients)
	}
	return n
}

// DelayLimitS returns MaxDelayS or its default, s.
func (r *Rules) DelayLimitS() float64 { return cmp.Or(r.MaxDelayS, DefaultMaxDelayS) }

// trust is how many standard deviations are added to what is predicted: Trust, or its default.
func (r *Rules) trust() float64 { return cmp.Or(r.Trust, defaultTrust) }

// worst is the slowdown that contracts, limits and dues allow for.
func (r *Rules) worst(p *Prediction) float64 { return max(1, p.Slowdown+r.trust()*p.SD) }

// breaks reports whether a slowdown is above the job's contract.
func (r *Rules) breaks(j *Job, slowdown float64) bool {
	limit := cmp.Or(j.MaxSlowdown, r.MaxSlowdown)
	return limit != 0 && slowdown > limit
}

// margin is MemMargin or its default.
func (r *Rules) margin() float64 { return cmp.Or(r.MemMargin, defaultMemMargin) }

// memory is how much of a card's memory jobs may hold together, MiB.
func (r *Rules) memory(spec *GPUSpec) float64 { return spec.MemMiB * (1 - r.margin()) }

// dueS returns when the job is to have ended, s on State.NowS's clock; +Inf = nothing is promised. A lead that only
// mean run times promise doesn't put it off. A foreign job, and one of unknown length, is promised its start, without a
// grace.
func (r *Rules) dueS(j *Job) float64 {
	switch {
	case j.PlainEndS == 0 || r.Bare:
		return math.Inf(1)
	case j.Profile == nil || j.Foreign:
		return j.PlainEndS - j.EarlyS
	}
	return j.PlainEndS - j.EarlyS + r.graceS(j)
}

// endsBy is by when a member of a GPU is to have ended, s from nowS: by its due. Where its start was too late for that
// it may take its grace longer than without co-runners, when it would end at aloneS.
func (r *Rules) endsBy(j *Job, aloneS, nowS float64) float64 {
	if by := r.dueS(j) - nowS; aloneS <= by {
		return by
	}
	return aloneS + r.graceS(j)
}

// graceS is by how much a job may end later than on plain Slurm, s: a part of its median length, since most of an
// application's runs are shorter than their mean.
func (r *Rules) graceS(j *Job) float64 {
	if j.Profile == nil {
		return 0
	}
	return cmp.Or(j.Grace, r.Grace, DefaultGrace) * j.Profile.atSigma(0)
}

// latestStart is when a pending job, whose takesS is set, must start to keep its due and its deadline, s from now.
func (r *Rules) latestStart(j *Job, nowS float64) float64 {
	by := r.dueS(j) - nowS - j.takesS
	if math.IsNaN(by) { // it may take for ever
		by = math.Inf(1)
	}
	if j.DeadlineS > 0 && !r.Bare {
		// Slurm cancels a job that its limit doesn't fit before its deadline.
		by = min(by, j.DeadlineS-j.LimitS-granularityS-nowS)
	}
	return by
}

// granularityS is how much of a time limit stays unused where there is room, s: a job's start-up counts toward its
// limit, and Slurm counts in minutes and looks every 30 s.
const granularityS = 30

// mustEndS returns how many seconds after nowS a job of known profile must have ended; +Inf = no limit counts, NaN = it
// must not share because of its limit: a job that may reach its limit even alone shares only under a contract of its
// own. With ExtendLimit the time that sharing costs is given back, and limits don't count.
func (r *Rules) mustEndS(j *Job, elapsedS, nowS float64) float64 {
	in := math.Inf(1)
	if j.Profile.Busy != nil { // a session lasts for a time, not for an amount of work
		return in
	}
	if j.LimitS > 0 && (!r.ExtendLimit || j.LimitFixed) {
		spare := j.LimitS - j.Profile.DurationS - r.trust()*j.Profile.DurationSD
		switch {
		case spare > 0:
			in = j.LimitS - elapsedS - min(granularityS, spare/2)
		case j.MaxSlowdown == 0:
			return math.NaN()
		}
	}
	if j.DeadlineS > 0 {
		in = min(in, j.DeadlineS-nowS-granularityS)
	}
	return in
}

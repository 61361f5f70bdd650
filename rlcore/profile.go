package rlcore

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Use is what a job takes of one GPU at an instant when it runs alone: the four resources of the thesis (eq. 3: gpu,
// gpumem, gpucore, pcie).
type Use struct {
	GPU      float64 `json:"gpu"`       // fraction of time a kernel runs (NVML utilisation.gpu / 100), 0..1
	MemMiB   float64 `json:"mem_mib"`   // device memory held, MiB
	Core     float64 `json:"core"`      // fraction of the SMs that are busy (GPM SM activity or the nearest figure), 0..1
	PCIeMBps float64 `json:"pcie_mbps"` // PCIe traffic, both directions together, MB/s
	// MemBusy is the fraction of time the device memory is read or written (NVML utilisation.memory / 100), 0..1; 0 =
	// unknown. Jobs compete for it, but only the interference model looks at it.
	MemBusy float64 `json:"mem_busy,omitempty"`
}

// Profile is an application's solo use of a GPU over time.
//
// Series holds one Use per PeriodS seconds from the job's start on; the last one holds until DurationS. A Profile is
// immutable once built: jobs and states share pointers to it.
type Profile struct {
	App       string  `json:"app"`
	Owner     string  `json:"owner,omitempty"` // user whose jobs these are; "" = anybody's
	DurationS float64 `json:"duration_s"`      // solo run time, s, > 0
	PeriodS   float64 `json:"period_s"`        // seconds per point of Series, > 0
	Series    []Use   `json:"series"`          // at least one point
	StepS     float64 `json:"step_s"`          // solo time of one iteration, s; 0 = unknown
	Runs      int     `json:"runs"`            // solo runs it was learned from; 0 = imported
	// Processes is the largest number of processes that compute at a time, and ProcessMiB the most device memory of one of
	// them, MiB; 0 = not known.
	Processes  int     `json:"processes,omitempty"`
	ProcessMiB float64 `json:"process_mib,omitempty"`
	// DurationSD is the standard deviation of DurationS over those runs, s.
	DurationSD float64 `json:"duration_sd_s"`
	// Past are the last runs that have ended by themselves, the oldest first, up to MostPast; see Foretold.
	Past   []Past `json:"past,omitempty"`
	Source string `json:"source,omitempty"` // where the figures come from
	Model  string `json:"card,omitempty"`   // the GPU model that it was measured on, "" = any
	// HeldMiB is the limit under which MPS held the runs, MiB, if they took most of it: without a limit the application
	// may take more. 0 = it takes what it needs.
	HeldMiB float64 `json:"held_mib,omitempty"`
	// Asked: nothing is measured. The owner has declared HeldMiB, and MPS limits the job to it.
	Asked bool `json:"-"`
	// Busy is an interactive session's profile while it computes, nil for all other applications. A session's Series is
	// what it is assumed to use on average, and its memory what MPS holds it to.
	Busy *Profile `json:"-"`

	aloneS float64 // by runs alone, of a Foretold profile, s; see SlowdownBy
}

// Identity is what is believed about applications by: names are free, so an application is one user's.
type Identity struct {
	App   string `json:"app"`
	Owner string `json:"user"`
}

// Identity returns the owner and name of the application.
func (p *Profile) Identity() Identity { return Identity{p.App, p.Owner} }

// Compare orders identities.
func (i Identity) Compare(j Identity) int {
	return cmp.Or(cmp.Compare(i.App, j.App), cmp.Compare(i.Owner, j.Owner))
}

// ErrBadProfile marks a profile with an impossible figure.
var ErrBadProfile = errors.New("bad profile")

// mostAmount bounds times, memory and traffic, in any unit: sums and squares of impossible ones have no end.
const mostAmount = 1e15

// Validate returns an error that wraps ErrBadProfile and names the impossible figure, or nil.
func (p *Profile) Validate() error {
	amount := func(v float64) bool { return v >= 0 && v <= mostAmount }
	positive := func(v float64) bool { return amount(v) && v > 0 }
	fraction := func(v float64) bool { return v >= 0 && v <= 1 }
	var err error
	check := func(what string, v float64, ok bool) {
		if !ok && err == nil {
			err = fmt.Errorf("%w %q: %s is %v", ErrBadProfile, p.App, what, v)
		}
	}
	check("duration_s", p.DurationS, positive(p.DurationS))
	check("period_s", p.PeriodS, positive(p.PeriodS))
	check("step_s", p.StepS, amount(p.StepS))
	check("duration_sd_s", p.DurationSD, amount(p.DurationSD))
	check("runs", float64(p.Runs), p.Runs >= 0)
	check("processes", float64(p.Processes), p.Processes >= 0)
	check("process_mib", p.ProcessMiB, amount(p.ProcessMiB))
	check("held_mib", p.HeldMiB, amount(p.HeldMiB))
	check("the length of past", float64(len(p.Past)), len(p.Past) <= MostPast)
	for _, x := range p.Past {
		check("past", x.SoloS, positive(x.SoloS))
		check("past", x.LimitS, amount(x.LimitS))
	}
	check("the length of series", float64(len(p.Series)), len(p.Series) > 0)
	for i := range p.Series {
		u := &p.Series[i]
		check("gpu", u.GPU, fraction(u.GPU))
		check("core", u.Core, fraction(u.Core))
		check("mem_mib", u.MemMiB, amount(u.MemMiB))
		check("pcie_mbps", u.PCIeMBps, amount(u.PCIeMBps))
		check("mem_busy", u.MemBusy, fraction(u.MemBusy))
	}
	return err
}

// Stretched returns the profile of a run of durationS seconds: every phase keeps its fraction, and an iteration takes
// the same time.
func (p *Profile) Stretched(durationS float64) *Profile {
	if durationS == p.DurationS {
		return p
	}
	q := *p
	q.PeriodS *= durationS / p.DurationS
	q.DurationS, q.Past, q.aloneS = durationS, nil, 0 // of that run it is known
	return &q
}

// OnPart returns the profile on a part of the GPU's SMs, 0..1. Kernels that use more SMs than that slow down in
// proportion; the rest of the run takes as long as before. Memory traffic is ignored: an instance has a part of it,
// too.
func (p *Profile) OnPart(part float64) *Profile {
	if part >= 1 {
		return p
	}
	q := *p
	q.Series = slices.Clone(p.Series)
	longer := 0.0
	for i := range q.Series {
		u := &q.Series[i]
		kernels := max(u.GPU, u.Core/part) // the time that they take, of what all took
		all := 1 - u.GPU + kernels
		u.GPU, u.Core = min(1, kernels/all), min(1, u.Core/part/all)
		u.PCIeMBps, u.MemBusy = u.PCIeMBps/all, min(1, u.MemBusy/all)
		longer += all / float64(len(q.Series))
	}
	return q.times(longer)
}

// Times returns the profile of runs that take as many times as long.
func (p *Profile) Times(ratio float64) *Profile {
	q := *p
	return q.times(ratio)
}

func (p *Profile) times(ratio float64) *Profile {
	p.DurationS, p.PeriodS, p.StepS, p.DurationSD = p.DurationS*ratio, p.PeriodS*ratio, p.StepS*ratio, p.DurationSD*ratio
	p.Past, p.aloneS = slices.Clone(p.Past), p.aloneS*ratio
	for i := range p.Past {
		p.Past[i].SoloS *= ratio
	}
	return p
}

// At returns the use after t seconds of solo work; outside the run, that of the nearest point.
func (p *Profile) At(t float64) Use { return p.Series[p.Index(t)] }

// Index returns the index in Series of the use after t seconds of solo work.
func (p *Profile) Index(t float64) int {
	at := t / p.PeriodS
	if !(at > 0) {
		return 0
	}
	return int(min(at, float64(len(p.Series)-1))) // what no int holds, a conversion may make negative
}

// fields are the resources of a Use.
func (u *Use) fields() [5]*float64 {
	return [...]*float64{&u.GPU, &u.MemMiB, &u.Core, &u.PCIeMBps, &u.MemBusy}
}

// Mean returns the use averaged over the run.
func (p *Profile) Mean() (mean Use) {
	total := 0.0
	for i := range p.Series {
		w := p.PeriodS
		if i == len(p.Series)-1 {
			w = max(p.DurationS-float64(i)*p.PeriodS, 1e-9)
		}
		total += w
		for k, v := range p.Series[i].fields() {
			*mean.fields()[k] += w * *v
		}
	}
	for _, v := range mean.fields() {
		*v /= total
	}
	return mean
}

// Peak returns each resource's largest use over the run, whenever it occurs.
func (p *Profile) Peak() (most Use) {
	for i := range p.Series {
		for k, v := range p.Series[i].fields() {
			*most.fields()[k] = max(*most.fields()[k], *v)
		}
	}
	return most
}

// Clients is how many of an MPS server's clients a job is.
func (p *Profile) Clients() int { return max(1, p.Processes) }

// ProcessLimit is the device memory that each of a job's processes may be held to, MiB, where the job is given
// limitMiB: MPS limits each process by itself. Equal parts, but no less than one is expected to need.
func (p *Profile) ProcessLimit(limitMiB, margin float64) float64 {
	if p.Processes < 2 {
		return limitMiB
	}
	need := math.Ceil(p.ProcessMiB * (1 + max(margin, leastMargin)))
	return min(limitMiB, max(need, math.Floor(limitMiB/float64(p.Processes))))
}

// Preallocating reports whether the application seems to reserve most of a card of cardMiB at its start, as some
// frameworks do: from its first minute on it holds the same amount, three quarters of the card or more.
func (p *Profile) Preallocating(cardMiB float64) bool {
	peak := p.Peak().MemMiB
	for i := p.Index(60); i < max(1, len(p.Series)-1); i++ { // at the last point it may have ended
		if p.Series[i].MemMiB < .98*peak {
			return false
		}
	}
	return cardMiB > 0 && peak >= .75*cardMiB
}

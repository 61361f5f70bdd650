package encoder

import (
	"math"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Demand is a reading of a job's use over time.
type Demand int

// The thesis's three readings of a profile.
const (
	OverTime Demand = iota // the profile itself (DqnGPU)
	Peak                   // its peak, all the time (DeepRM Max)
	Mean                   // its mean, all the time (DeepRM Mean)
)

// The images' size: DeepRM's published constants (hongzimao/deeprm: time horizon 20,
// 10 units per resource, backlog of 60 jobs).
const (
	Horizon = 20
	Units   = 10
	Backlog = 60

	longestColumns = 15 // of DeepRM's longest job
	plane          = Horizon * Units
	picture        = resources * plane
)

// The resources of the thesis's eq. 3, in its order.
const (
	resGPU = iota
	resMem
	resCore
	resPCIe
	resources
)

// Images draws a decision as the thesis does (sec. 3): pictures of 0 and 1, time by amount, one per resource: first
// what is allocated on the GPU over the coming steps, then one for every slot, then the backlog. A slot is a pending
// job, or, if Virtual, a combination of them: the sum of its members' pictures.
type Images struct {
	M       int
	Demand  Demand
	Virtual bool

	StepS  float64 // seconds per column in the last Encode
	Pixels []int32 // the pixels that are 1

	cluster timeline
	jobs    [rlcore.MaxWindow]timeline
	sum     timeline
}

// timeline holds the units of each resource in each step.
type timeline [resources][Horizon]float64

// Slots returns the number of slots: M, or 2^M − 1 if Virtual.
func (e *Images) Slots() int {
	if e.Virtual {
		return 1<<e.M - 1
	}
	return e.M
}

// Len returns the number of pixels.
func (e *Images) Len() int { return (1+e.Slots())*picture + Backlog }

// Encode draws the window. A column is a fifteenth of the longest solo run in sight,
// since DeepRM's longest job takes 15 of its 20 steps.
func (e *Images) Encode(w *rlcore.Window) {
	card := w.Card()
	longest := 1.0
	for i := range card.Running {
		longest = max(longest, card.Running[i].LeftS())
	}
	for i := range w.Jobs {
		longest = max(longest, length(w.Job(i)))
	}
	e.StepS = longest / longestColumns
	e.cluster = timeline{}
	for i := range card.Running {
		r := &card.Running[i]
		e.draw(&e.cluster, &r.Job, r.DoneS, r.LeftS(), &card.Spec)
	}
	for i := range w.Jobs {
		e.jobs[i] = timeline{}
		e.draw(&e.jobs[i], w.Job(i), 0, length(w.Job(i)), &card.Spec)
	}
	e.Pixels = e.Pixels[:0]
	e.paint(0, &e.cluster)
	for s := 1; s <= e.Slots(); s++ {
		switch {
		case !e.Virtual && s <= len(w.Jobs):
			e.paint(s*picture, &e.jobs[s-1])
		case e.Virtual && s < 1<<len(w.Jobs):
			e.add(rlcore.Combo(s), len(w.Jobs))
			e.paint(s*picture, &e.sum)
		}
	}
	at := (1 + e.Slots()) * picture
	for i := range min(Backlog, len(w.State.Pending)-len(w.Jobs)) {
		e.Pixels = append(e.Pixels, int32(at+i))
	}
}

// add sets sum to the use of combination c out of n jobs.
func (e *Images) add(c rlcore.Combo, n int) {
	e.sum = timeline{}
	for i := range n {
		if c.Has(i) {
			for r := range e.sum {
				for t := range e.sum[r] {
					e.sum[r][t] += e.jobs[i][r][t]
				}
			}
		}
	}
}

// Fits reports whether combination c of the last Encode's window stays within the GPU's amount of every resource in
// every step of the images: Σ r ≤ R. A job alone on an idle GPU always fits.
func (e *Images) Fits(w *rlcore.Window, c rlcore.Combo) bool {
	if c == 0 || c.Len() == 1 && len(w.Card().Running) == 0 {
		return true
	}
	e.add(c, len(w.Jobs))
	for r := range e.sum {
		for t := range e.sum[r] {
			if e.sum[r][t]+e.cluster[r][t] > Units+1e-9 {
				return false
			}
		}
	}
	return true
}

func length(j *rlcore.Job) float64 {
	if j.Profile != nil {
		return j.Profile.DurationS
	}
	return max(j.LimitS, 1)
}

// draw adds a job's use to a timeline: left seconds, from done seconds of its run on.
func (e *Images) draw(tl *timeline, j *rlcore.Job, done, left float64, spec *rlcore.GPUSpec) {
	var constant rlcore.Use
	switch {
	case j.Profile == nil:
		constant = rlcore.Use{GPU: 1, MemMiB: spec.MemMiB, Core: 1}
	case e.Demand == Peak:
		constant = j.Profile.Peak()
	case e.Demand == Mean:
		constant = j.Profile.Mean()
	}
	for t := range min(Horizon, int(math.Ceil(left/e.StepS))) {
		u := constant
		if e.Demand == OverTime && j.Profile != nil {
			u = j.Profile.At(done + (float64(t)+0.5)*e.StepS)
		}
		tl[resGPU][t] += Units * u.GPU
		tl[resMem][t] += Units * spec.MemPart(u.MemMiB)
		tl[resCore][t] += Units * u.Core
		if spec.PCIeMBps > 0 {
			tl[resPCIe][t] += Units * u.PCIeMBps / spec.PCIeMBps
		}
	}
}

// paint appends a timeline's pixels, from index at on: as many ones in a column as units are used, rounded up.
func (e *Images) paint(at int, tl *timeline) {
	for r := range tl {
		for t := range tl[r] {
			for u := range min(Units, int(math.Ceil(tl[r][t]-1e-9))) {
				e.Pixels = append(e.Pixels, int32(at+r*plane+t*Units+u))
			}
		}
	}
}

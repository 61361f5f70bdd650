package history

import (
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Ending is how far a job was believed to have come at the last poll that showed it.
type Ending struct {
	Start time.Time // as Slurm reported it
	At    time.Time
	DoneS float64
	Slow  float64
}

// doneS is how much solo work the job was believed to have done in runS seconds.
func (e *Ending) doneS(runS float64) float64 {
	return e.DoneS + max(0, runS-e.At.Sub(e.Start).Seconds())/max(e.Slow, 1)
}

// ranToEnd reports whether a job in that state ran to its end. One that Slurm has forgotten may have.
func ranToEnd(state string) bool { return state == "COMPLETED" || state == "" }

// Failed reports whether the job ended by itself, with an error.
func Failed(state string) bool { return state == "FAILED" }

// nearlyFull is the part of a GPU's memory in use from which on a failed run is assumed to have lacked some.
const nearlyFull = 0.9

// shortest is how long an application must take alone, s, for a run of it to say something about sharing:
// starting and ending take a second or two in any case, and Slurm reports times in whole seconds.
const shortest = 30

// Judgement is what an outcome is made from.
type Judgement struct {
	Run    *Run
	How    job.Description // State "" = Slurm has forgotten it
	Spec   rlcore.GPUSpec
	Limit  float64     // the site's contract, 0 = none
	Ending *Ending     // nil = it is not known
	Member *job.Member // of the group it ran in, nil = none
	// Alone: it was requeued to run alone after it had failed while sharing.
	Alone bool
	// FailsAlone: runs of the application have failed alone before.
	FailsAlone bool
}

// Judge concludes what a run means. It changes nothing.
func (j *Judgement) Judge(b Beliefs) Outcome {
	r := j.Run
	o := Outcome{
		Run: r.ID, Ref: r.Ref, User: r.User, Account: r.Account, App: r.App, Node: r.Node,
		Start: r.Start, End: r.End, State: j.How.State, Contract: j.Limit,
	}
	if r.Terms.MaxSlowdown > 0 {
		o.Contract = r.Terms.MaxSlowdown
	}
	if j.Member != nil {
		o.Predicted = j.Member.Predicted
	}
	for _, c := range r.CoRunners {
		o.With = append(o.With, c.Ref)
		o.WithApps = append(o.WithApps, c.App)
	}
	if r.Profile != nil {
		o.SoloS = r.Profile.DurationS
	}
	if Failed(j.How.State) {
		switch {
		case o.Shared():
			o.Suspect = j.suspect()
			for _, c := range r.CoRunners {
				if o.Suspect != "" && c.AtEnd && c.App != "" {
					o.Blamed = append(o.Blamed, c.App)
				}
			}
		case j.Alone:
			o.Cleared = true
		}
		return o
	}
	if !ranToEnd(j.How.State) {
		// A time limit that strikes is the application's way to end, for some.
		o.Learned = j.How.State == "TIMEOUT" && !o.Shared() && r.Complete
		return o
	}
	if j.How.State == "" && r.Profile != nil && r.DurationS() < r.Profile.DurationS/2 {
		return o // it may well have failed
	}
	if !o.Shared() {
		o.Learned = r.Complete
	}
	if r.Profile == nil || !(o.SoloS > 0) {
		return o
	}
	o.Slowdown = r.DurationS() / o.SoloS
	if !o.Shared() || o.SoloS < shortest {
		return o
	}
	if j.How.State != "" {
		o.Lesson = j.lesson(b)
	}
	o.Broken = o.Contract > 0 && r.DurationS() > o.Contract*o.SoloS+r.Profile.DurationSD
	return o
}

// suspect says why sharing may be the reason for a failure, "" = it isn't. The application has ended well
// alone (it would not have shared a GPU otherwise), and what a co-runner really takes may be more than was
// known.
func (j *Judgement) suspect() string {
	r, card := j.Run, j.Run.cardMemMiB()
	switch {
	case r.MPSFault:
		return "the MPS server it shared failed"
	case card > 0 && r.PeakMemMiB >= nearlyFull*card:
		return "GPU memory was nearly full"
	case r.Profile != nil && card > 0 && r.PeakMemMiB+r.Profile.Peak().MemMiB > card:
		return "GPU memory may not have sufficed"
	case r.Profile != nil && !j.FailsAlone:
		return "its application has not failed alone"
	}
	return ""
}

func (j *Judgement) lesson(b Beliefs) *interference.Lesson {
	r := j.Run
	overlaps := make([]rlcore.Overlap, len(r.CoRunners))
	for i, c := range r.CoRunners {
		overlaps[i] = rlcore.Overlap{Profile: c.Profile, S: c.OverlapS}
	}
	with, part, ok := rlcore.CoRunners(r.DurationS(), overlaps)
	if !ok {
		return nil
	}
	believed := math.NaN()
	if j.Ending != nil {
		if done := j.Ending.doneS(r.DurationS()); done > 0 {
			believed = rlcore.CoRunSlowdown(r.DurationS(), done, part)
		}
	}
	members := append([]*rlcore.Profile{r.Profile}, with...)
	l, ok := b.Lesson(&j.Spec, members, rlcore.CoRunSlowdown(r.DurationS(), r.Profile.DurationS, part), believed)
	if !ok {
		return nil
	}
	return &l
}

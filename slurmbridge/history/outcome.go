package history

import (
	"context"
	"math"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Run is one run of a job as its node recorded it.
type Run struct {
	ID             int64 // of the record, in the order they came
	Ref, User, App string
	Account        string
	Node           string
	Start, End     time.Time // by the node's clock
	Comment        string    // the owner's
	// Profile is what was known of the application before this run; nil = nothing.
	Profile *rlcore.Profile
	// Whole: the record says all that a profile is made of.
	Whole bool
	// GPU is the index of its GPU on the node. Fault: the MPS server that it computed
	// through there failed.
	GPU   int
	Fault bool
	// PeakMemMiB is the most that was in use on its GPU, CardMemMiB what there is.
	PeakMemMiB, CardMemMiB float64
	Others                 []Beside
}

// Beside is who was on the GPU during some of a run.
type Beside struct {
	Ref, App string
	Profile  *rlcore.Profile
	S        float64 // how long the two were there together, s
	Last     bool    // still there when the run ended
}

// RunS is how long the run took, s.
func (r *Run) RunS() float64 { return r.End.Sub(r.Start).Seconds() }

// Outcome is what came of one run: how it ended, what it says of the company it
// ran in, and what the bridge made of that. The interference model is what all
// outcomes taught.
type Outcome struct {
	Run     int64     `json:"run"`
	Ref     string    `json:"ref"`
	User    string    `json:"user"`
	Account string    `json:"account,omitempty"`
	App     string    `json:"app,omitempty"`
	Node    string    `json:"node"`
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	// State is Slurm's word for how the job ended, "" = it had forgotten it.
	State string `json:"state,omitempty"`
	// With lists who was on the GPU for some of the run, by ref, and their applications.
	With     []string `json:"with,omitempty"`
	WithApps []string `json:"with_apps,omitempty"`
	// SoloS is how long the application takes alone, 0 = not known. Slowdown is the
	// run's time over that, 0 where it says nothing: the run isn't whole, or nothing is known.
	SoloS    float64 `json:"solo_s,omitempty"`
	Slowdown float64 `json:"slowdown,omitempty"`
	// Predicted is what was foreseen when its group was decided, 0 = nothing was.
	Predicted float64 `json:"predicted,omitempty"`
	// Contract is the slowdown its owner, or the site, allowed; 0 = any. Broken
	// says that it took longer, by more than its runs alone differ among themselves.
	Contract float64 `json:"contract,omitempty"`
	Broken   bool    `json:"broken,omitempty"`
	// Learned: the run became part of its application's profile.
	Learned bool `json:"learned,omitempty"`
	// Lesson is what it teaches of its company, nil = nothing.
	Lesson *interference.Lesson `json:"lesson,omitempty"`
	// Suspect says that the run failed, and why its company is held to be the reason;
	// "" = it isn't. Again: it was requeued to run alone.
	Suspect string `json:"suspect,omitempty"`
	// Blamed are the applications that were there when it failed.
	Blamed []string `json:"blamed,omitempty"`
	Again  bool     `json:"again,omitempty"`
	// Cleared: it failed alone, too, so its company was not the reason.
	Cleared bool `json:"cleared,omitempty"`
}

// Shared reports whether anybody else was on the job's GPU.
func (o *Outcome) Shared() bool { return len(o.With) > 0 }

// Runs are what the nodes recorded, and what was made of it.
type Runs interface {
	// Unjudged returns runs that no outcome was kept of, oldest first, some at a time.
	Unjudged(ctx context.Context) ([]Run, error)
	// Keep writes an outcome down. Where it is Learned the run becomes part of its
	// application's profile.
	Keep(ctx context.Context, o *Outcome) error
	// Outcomes returns those of the runs that ended since the given time, in the
	// order they were kept.
	Outcomes(ctx context.Context, since time.Time) ([]Outcome, error)
}

// Beliefs are what is believed of slowdowns, and learn.
type Beliefs interface {
	rlcore.Predictor
	Lesson(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, foreseen float64) (interference.Lesson, bool)
	Take(l *interference.Lesson)
	Doubt(victim string, others []string)
	Reassure(victim string, others []string)
	Forbid(a, b string)
	Forgive(a, b string)
}

// Ending is how far a job was believed to have come at the last look that saw it.
type Ending struct {
	Start time.Time // as Slurm told it
	At    time.Time
	DoneS float64
	Slow  float64
}

// doneS is how much solo work the job was believed to have done in runS seconds.
func (e *Ending) doneS(runS float64) float64 {
	return e.DoneS + max(0, runS-e.At.Sub(e.Start).Seconds())/max(e.Slow, 1)
}

// complete reports whether a job in that state ran to its end. What Slurm has
// forgotten may have.
func complete(state string) bool { return state == "COMPLETED" || state == "" }

// failed reports whether the job ended itself, and not well.
func Failed(state string) bool { return state == "FAILED" }

// nearlyFull is the part of a card's memory from which on a failed run is taken to
// have lacked some.
const nearlyFull = 0.9

// shortest is how long an application must take alone, s, for a run of it to say
// something about its company: starting and ending take a second or two whoever is
// there, and Slurm tells times in whole seconds.
const shortest = 30

// judgement is what an outcome is made from.
type Judgement struct {
	Run    *Run
	How    job.Description // State "" = forgotten
	Spec   rlcore.GPUSpec
	Limit  float64     // the site's contract, 0 = none
	Ending *Ending     // nil = nobody followed it
	Member *job.Member // of the group it ran in, nil = none
	// alone: it was requeued to run alone after it had failed beside others.
	Alone bool
	// failsAlone: runs of the application have failed alone before.
	FailsAlone bool
}

// judge says what a run means. It changes nothing.
func (j *Judgement) Judge(b Beliefs) Outcome {
	r := j.Run
	o := Outcome{
		Run: r.ID, Ref: r.Ref, User: r.User, Account: r.Account, App: r.App, Node: r.Node,
		Start: r.Start, End: r.End, State: j.How.State, Contract: j.Limit,
	}
	if t := job.ParseTerms(r.Comment); t.MaxSlowdown > 0 {
		o.Contract = t.MaxSlowdown
	}
	if j.Member != nil {
		o.Predicted = j.Member.Predicted
	}
	for _, x := range r.Others {
		o.With = append(o.With, x.Ref)
		o.WithApps = append(o.WithApps, x.App)
	}
	if r.Profile != nil {
		o.SoloS = r.Profile.DurationS
	}
	if Failed(j.How.State) {
		switch {
		case o.Shared():
			o.Suspect = j.suspect()
			for _, x := range r.Others {
				if o.Suspect != "" && x.Last && x.App != "" {
					o.Blamed = append(o.Blamed, x.App)
				}
			}
		case j.Alone:
			o.Cleared = true
		}
		return o
	}
	if !complete(j.How.State) {
		// A time limit that strikes is the application's way to end, for some.
		o.Learned = j.How.State == "TIMEOUT" && !o.Shared() && r.Whole
		return o
	}
	if j.How.State == "" && r.Profile != nil && r.RunS() < r.Profile.DurationS/2 {
		return o // it may well have failed
	}
	if !o.Shared() {
		o.Learned = r.Whole
	}
	if r.Profile == nil || !(o.SoloS > 0) {
		return o
	}
	o.Slowdown = r.RunS() / o.SoloS
	if !o.Shared() || o.SoloS < shortest {
		return o
	}
	if j.How.State != "" {
		o.Lesson = j.lesson(b)
	}
	o.Broken = o.Contract > 0 && r.RunS() > o.Contract*o.SoloS+r.Profile.DurationSD
	return o
}

// suspect says why company may be the reason for a failure, "" = it isn't. The
// application has ended well alone (it wouldn't have been put beside others
// otherwise), and what a neighbour really takes may be more than was known.
func (j *Judgement) suspect() string {
	r := j.Run
	switch {
	case r.Fault:
		return "the MPS server it shared failed"
	case r.CardMemMiB > 0 && r.PeakMemMiB >= nearlyFull*r.CardMemMiB:
		return "GPU memory was nearly full"
	case r.Profile != nil && r.CardMemMiB > 0 && r.PeakMemMiB+r.Profile.Peak().MemMiB > r.CardMemMiB:
		return "GPU memory may not have sufficed"
	case r.Profile != nil && !j.FailsAlone:
		return "its application has not failed alone"
	}
	return ""
}

func (j *Judgement) lesson(b Beliefs) *interference.Lesson {
	r := j.Run
	beside := make([]rlcore.Overlap, len(r.Others))
	for i, x := range r.Others {
		beside[i] = rlcore.Overlap{Profile: x.Profile, S: x.S}
	}
	with, part, ok := rlcore.CoRunners(r.RunS(), beside)
	if !ok {
		return nil
	}
	foreseen := math.NaN()
	if j.Ending != nil {
		if done := j.Ending.doneS(r.RunS()); done > 0 {
			foreseen = rlcore.CoRunSlowdown(r.RunS(), done, part)
		}
	}
	members := append([]*rlcore.Profile{r.Profile}, with...)
	l, ok := b.Lesson(&j.Spec, members, rlcore.CoRunSlowdown(r.RunS(), r.Profile.DurationS, part), foreseen)
	if !ok {
		return nil
	}
	return &l
}

// teach lets beliefs learn from an outcome.
func (o *Outcome) Teach(b Beliefs) {
	if o.Lesson != nil {
		b.Take(o.Lesson)
	}
	switch {
	case o.Broken:
		b.Doubt(o.App, o.WithApps)
	case o.Lesson != nil && o.Contract > 0:
		b.Reassure(o.App, o.WithApps)
	}
	for _, app := range o.Blamed {
		b.Forbid(o.App, app)
	}
}

// Teach lets beliefs learn from all outcomes there are, in their order. Where a run that
// failed in company failed alone as well, its company is forgiven.
func Teach(b Beliefs, outcomes []Outcome) {
	suspect := map[string]*Outcome{}
	for i := range outcomes {
		o := &outcomes[i]
		o.Teach(b)
		if o.Suspect != "" {
			suspect[o.Ref] = o
		}
		if was := suspect[o.Ref]; o.Cleared && was != nil {
			was.Forgive(b)
		}
	}
}

func (o *Outcome) Forgive(b Beliefs) {
	for _, app := range o.Blamed {
		b.Forgive(o.App, app)
	}
}

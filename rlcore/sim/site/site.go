// Package site is a simulated site's knowledge of its jobs: submissions, past run times and co-runners, predictions.
// What jobs really do is known to the simulator alone, which this package can't import: decisions get lengths and
// slowdowns from here only.
package site

import (
	"cmp"
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Observer learns of runs; see interference.Model.
type Observer interface {
	// Observe: members[0] has ended and was slowed by slowdown, where predicted had been predicted; weight is how much
	// that says, up to 1. The slice is the observer's to keep.
	Observe(spec *rlcore.GPUSpec, members []*rlcore.Profile, slowdown, predicted, weight float64)
	// Doubt and Reassure: the victim's contract was broken, or kept, next to these.
	Doubt(victim rlcore.Identity, others []rlcore.Identity)
	Reassure(victim rlcore.Identity, others []rlcore.Identity)
}

// Site is what is known. Its fields are set once.
type Site struct {
	Observer    Observer // nil = nothing is learned of slowdowns
	MaxSlowdown float64  // the contract of jobs without one, 0 = none
	Foretell    bool     // lengths are learned
	// On is what a job of a profile is on a GPU model, nil = the same on all.
	On func(p *rlcore.Profile, card string) *rlcore.Profile

	apps map[rlcore.Identity]*app
}

// app is what is known of an application's runs, and foretold of its jobs since the last one ended.
type app struct {
	past     []rlcore.Past
	foretold map[kind]*rlcore.Profile
}

// kind names the jobs of an application that share a foretold profile.
type kind struct {
	user   string
	limitS float64
}

// Run is a run that has ended. Times are in s.
type Run struct {
	Job       *rlcore.Job
	Known     *rlcore.Profile // the job's application as it is known without any run; nil = it isn't
	Card      string          // the GPU's model
	Spec      *rlcore.GPUSpec
	RanS      float64
	BelievedS float64 // the solo work that was predicted of it
	Others    []interference.Overlap
}

// Expect returns the expected form of a job by the past runs of its application: those in its profile and those since.
// known is the application without the latter; nil = unknown.
func (s *Site) Expect(j *rlcore.Job, known *rlcore.Profile) *rlcore.Profile {
	if known == nil || !s.Foretell {
		return known
	}
	a, of := s.app(known.Identity()), kind{j.User, j.LimitS}
	if a.foretold[of] == nil {
		a.foretold[of] = known.Foretold(j.User, j.LimitS, a.past...)
	}
	return a.foretold[of]
}

// Ended learns from a run, as the daemon does (slurmbridge/history), and reports whether other jobs of its application
// are now expected to be something else.
func (s *Site) Ended(r *Run) bool {
	if r.Known == nil {
		return false
	}
	s.learnSlowdown(r)
	return s.learnLength(r)
}

func (s *Site) learnSlowdown(r *Run) {
	if s.Observer == nil || len(r.Others) == 0 {
		return
	}
	p := s.Expect(r.Job, r.Known)
	if s.On != nil {
		p = s.On(p, r.Card)
	}
	var others []rlcore.Identity
	for _, o := range r.Others {
		if o.Profile != nil {
			others = append(others, o.Profile.Identity())
		}
	}
	contract := cmp.Or(r.Job.MaxSlowdown, s.MaxSlowdown)
	broken := contract > 0 && r.RanS > contract*p.LongS()
	if broken {
		s.Observer.Doubt(p.Identity(), others)
	}
	all, part := interference.Companies(r.RanS, r.Others)
	soloS, tells := p.SlowdownBy()
	if len(all) == 0 || !tells {
		return
	}
	slowdown := interference.CoRunSlowdown(r.RanS, soloS, part)
	predicted := interference.CoRunSlowdown(r.RanS, r.BelievedS, part)
	for _, c := range all {
		s.Observer.Observe(r.Spec, append([]*rlcore.Profile{p}, c.With...), slowdown, predicted, c.Part*part)
	}
	if contract > 0 && !broken {
		s.Observer.Reassure(p.Identity(), others)
	}
}

// app returns what is known of an application's runs.
func (s *Site) app(of rlcore.Identity) *app {
	if s.apps == nil {
		s.apps = map[rlcore.Identity]*app{}
	}
	if s.apps[of] == nil {
		s.apps[of] = &app{foretold: map[kind]*rlcore.Profile{}}
	}
	return s.apps[of]
}

func (s *Site) learnLength(r *Run) bool {
	if !s.Foretell || !(r.BelievedS > 0) {
		return false
	}
	soloS := r.BelievedS
	if s.On != nil { // profiles are of the model on which jobs are fastest
		soloS *= r.Known.DurationS / s.On(r.Known, r.Card).DurationS
	}
	a := s.app(r.Known.Identity())
	a.past = append(a.past, rlcore.Past{
		SoloS: soloS, LimitS: r.Job.LimitS, User: r.Job.User, Shared: len(r.Others) > 0 || r.BelievedS < r.RanS-rounding,
	})
	a.past = slices.Clone(a.past[max(0, len(a.past)-rlcore.MostPast):])
	a.foretold = map[kind]*rlcore.Profile{}
	return true
}

// rounding is by how much sums of times may fall short, s.
const rounding = 1e-6

package sim

import (
	"slices"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/schedule"
)

// foretold is what was foretold of an application's jobs since the last of its runs ended.
type foretold struct {
	past []rlcore.Past
	by   map[foretoldOf]*rlcore.Profile
}

// foretoldOf names the jobs of an application that share a foretold profile.
type foretoldOf struct {
	user   string
	limitS float64
}

// foretell returns what a job is expected to be, given the runs of its application that have ended.
func (s *Sim) foretell(i int) *rlcore.Profile {
	j := &s.jobs[i]
	if j.known == nil {
		return nil
	}
	app := s.foretold[j.known.Identity()]
	if app == nil { // none of its runs has ended, or nothing is foretold
		return j.known
	}
	of := foretoldOf{j.User, j.LimitS}
	p := app.by[of]
	if p == nil {
		p = j.known.Foretold(j.User, j.LimitS, app.past...)
		app.by[of] = p
	}
	return p
}

// learnLength notes how long job i would have taken alone, as the site believes, for the waiting jobs of its
// application. It has ended on GPU g, after believedS of solo work as predicted.
func (s *Sim) learnLength(g, i int, believedS float64) {
	j := &s.jobs[i]
	if !s.cfg.Foretell || j.known == nil || !(believedS > 0) {
		return
	}
	soloS := believedS
	if s.cfg.On != nil { // profiles are of the model on which jobs are fastest
		soloS *= j.known.DurationS / s.cfg.On(j.known, s.cfg.card(g)).DurationS
	}
	shared := believedS < j.ended-j.started-rounding
	of := j.known.Identity()
	app := s.foretold[of]
	if app == nil {
		app = &foretold{}
		s.foretold[of] = app
	}
	app.past = append(app.past, rlcore.Past{SoloS: soloS, LimitS: j.LimitS, User: j.User, Shared: shared})
	app.past = slices.Clone(app.past[max(0, len(app.past)-rlcore.MostPast):])
	app.by = map[foretoldOf]*rlcore.Profile{}
	var changed []schedule.Job
	for k, w := range s.wait {
		if x := &s.jobs[w]; x.known != nil && x.known.Identity() == of {
			s.know(w)
			s.state.Pending[k].Profile, s.state.Pending[k].Cards = x.Profile, x.Cards
			changed = append(changed, x.Plainly())
		}
	}
	if len(changed) > 0 {
		s.plain.Wait(changed, s.now)
	}
}

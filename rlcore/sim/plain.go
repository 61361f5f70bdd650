package sim

// lateBy is the part of its own solo time by which a job must end after its plain end to count as late.
const lateBy = 0.1

// expect adds job i to the plain schedules.
func (s *Sim) expect(i int) {
	j := &s.jobs[i]
	s.plain.Add(j.ForSchedule(), s.now)
	truth, exact := j.Job, *j.Truth
	exact.DurationSD = 0 // of this run it is known
	truth.Profile = &exact
	s.truly.Add(truth.ForSchedule(), s.now)
}

// done is how much solo work the site believes a job to have done that runs, s.
func (s *Sim) done(id string) float64 {
	j := &s.jobs[s.byID[id]]
	if j.started < 0 || j.ended >= 0 {
		return 0
	}
	s.sync(j.gpu)
	for k := range s.devs[j.gpu].members {
		if m := &s.devs[j.gpu].members[k]; m.job == s.byID[id] {
			return s.believed(m)
		}
	}
	return 0
}

// believed is how much solo work the site believes a member to have done, s.
func (s *Sim) believed(m *member) float64 {
	if s.cfg.Predictor != nil {
		return m.est
	}
	return m.done
}

// Late returns by how many of its own solo times the job ended after its plain end, and
// whether that is more than a tenth. A job that was ended early isn't late.
func (o *Outcome) Late() (by float64, late bool) {
	if o.TimedOut || o.EndS <= o.PlainEndS+rounding {
		return 0, false
	}
	by = (o.EndS - o.PlainEndS) / o.SoloS
	return by, by > lateBy+rounding
}

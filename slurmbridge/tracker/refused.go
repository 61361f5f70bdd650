package tracker

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
	"github.com/slurmbridge/slurmbridge/slurmbridge/release"
)

// A change that Slurm refuses weighs as much as five changes that Slurm didn't answer. After two refusals the bridge
// gives up.
const (
	refusedWeight = 5
	enough        = 2 * refusedWeight
)

// refusalsLast is for how long a refusal is shown.
const refusalsLast = 24 * time.Hour

// Refusals are the changes that Slurm, or a plugin of the site's, did not make, by reason; type Wait counts them by
// job. A job is left to Slurm as it is after two of them. A job that can't be ungated stays behind the gate until the
// loop opens the gate for all jobs.
type Refusals struct {
	all map[reason]*job.RefusedChanges
	// sent are the changes that Slurm has taken since the last poll, by ref.
	sent map[string][]job.Change
}

type reason struct {
	step job.Step
	code string
}

// List returns the refused changes of the last day, by step and reason.
func (r *Refusals) List() []job.RefusedChanges {
	out := make([]job.RefusedChanges, 0, len(r.all))
	for _, one := range r.all {
		out = append(out, *one)
	}
	slices.SortFunc(out, func(x, y job.RefusedChanges) int {
		return cmp.Or(cmp.Compare(x.Step, y.Step), cmp.Compare(x.Code, y.Code))
	})
	return out
}

// Sent notes err, Slurm's answer to a change. If Slurm took the change, the next poll shows whether it was made.
func (t *Tracker) Sent(c *job.Change, err error, at time.Time) {
	failed := job.JobErrors{}
	failed.Add(err, c.Update.Jobs)
	for _, ref := range c.Update.Jobs {
		if e, ok := failed[ref]; ok {
			t.refuse(ref, c.Step, e, at)
		} else {
			t.Refusals.sent[ref] = append(t.Refusals.sent[ref], *c)
		}
	}
}

// refuse counts a change of a job that wasn't made.
func (t *Tracker) refuse(ref string, step job.Step, e job.JobError, at time.Time) {
	weight := refusedWeight
	switch {
	case errors.Is(e.Kind, job.ErrNoJob):
		return
	case errors.Is(e.Kind, job.ErrDown):
		weight = 1
	}
	key := reason{step, e.Code}
	one := t.Refusals.all[key]
	if weight == refusedWeight {
		if one == nil {
			one = &job.RefusedChanges{Step: step, Code: e.Code}
			t.Refusals.all[key] = one
		}
		one.Times++
		one.Text, one.Example, one.Last = e.Text, ref, at
	}
	w := t.Wait(ref)
	switch step {
	case job.StepUngate:
		w.StillGated += weight
	case job.StepRestore:
		w.Unrestored += weight
	case job.StepGate, job.StepPrepare, job.StepRelease:
		w.Refused += weight
	}
	if max(w.Refused, w.Unrestored) >= enough && t.Unmanaged[ref] == "" {
		t.Unmanaged[ref] = "Slurm refused twice to change it: " + e.Text
		if one != nil {
			one.GivenUp++
		}
	}
}

// Edited notes that a job was edited when the bridge was about to let it share. After the second time it is left to its
// owner, since the other jobs of its groups can't wait for that.
func (t *Tracker) Edited(ref string) {
	w := t.Wait(ref)
	if w.Refused += refusedWeight; w.Refused >= enough && t.Unmanaged[ref] == "" {
		t.Unmanaged[ref] = job.CauseEdited.String()
	}
}

// unrestorable reports whether the bridge no longer tries to restore a job, because the changes for it were not made.
func (t *Tracker) unrestorable(ref string) bool {
	w := t.Waits[ref]
	return w != nil && w.Unrestored >= enough
}

// StillGated returns the jobs that are behind a closed gate after two changes that were to ungate them.
func (t *Tracker) StillGated(s *job.Snapshot) (refs []string) {
	for i := range s.Jobs {
		j := &s.Jobs[i]
		if w := t.Waits[j.Ref]; w != nil && w.StillGated >= enough && j.State == job.Pending && release.Behind(s.Gates, j) {
			refs = append(refs, j.Ref)
		}
	}
	return refs
}

// notDone counts the changes that Slurm took since the last poll and that this poll doesn't show.
func (o *observer) notDone() {
	r := &o.t.Refusals
	for _, ref := range slices.Sorted(maps.Keys(r.sent)) {
		j := o.jobs[ref]
		if j == nil || j.State != job.Pending {
			continue
		}
		lacks := func(c job.Change) bool { return !release.Shows(j, &c.Update, o.s.Gates) }
		if i := slices.IndexFunc(r.sent[ref], lacks); i >= 0 {
			o.lacks[ref] = true
			o.t.refuse(ref, r.sent[ref][i].Step, job.JobError{Kind: job.ErrRefused, Code: job.CodeNotDone, Text: job.NotDone},
				o.s.At)
		}
	}
	clear(r.sent)
	maps.DeleteFunc(r.all, func(_ reason, one *job.RefusedChanges) bool { return o.s.At.Sub(one.Last) > refusalsLast })
}

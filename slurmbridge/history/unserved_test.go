package history

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// failedSoon is a run that failed after so many seconds at its application's first run with a part of a GPU's shares.
func failedSoon(after float64) *Judgement {
	start := time.Unix(1e9, 0)
	return &Judgement{
		Run:    &Run{App: "reader", User: "ann", Start: start, End: start.Add(time.Duration(after * float64(time.Second)))},
		How:    job.Description{State: "FAILED"},
		Spec:   &rlcore.GPUSpec{},
		Member: &job.Member{Shares: 99},
	}
}

// What fails at once, and for the first time under MPS, runs again without.
func TestFailedSoonUnderMPS(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(j *Judgement)
		want bool
	}{
		"at once": {func(*Judgement) {}, true},
		"beside another": {func(j *Judgement) {
			j.Member.Shares, j.Run.CoRunners = 50, []CoRunner{{Ref: "8", App: "b", AtEnd: true}}
		}, true},
		"later":                       {func(j *Judgement) { *j = *failedSoon(60) }, false},
		"with all shares":             {func(j *Judgement) { j.Member.Shares = 100 }, false},
		"in no group":                 {func(j *Judgement) { j.Member = nil }, false},
		"where jobs take turns":       {func(j *Judgement) { j.Spec.Sharing = contention.TimeSlice.Name }, false},
		"without MPS":                 {func(j *Judgement) { j.Run.WithoutMPS = true }, false},
		"it has ended well under MPS": {func(j *Judgement) { j.Served = true }, false},
		"it has failed alone":         {func(j *Judgement) { j.FailsAlone = true }, false},
		"it is the second run":        {func(j *Judgement) { j.Alone = true }, false},
		"its application isn't known": {func(j *Judgement) { j.Run.App = "" }, false},
		"it was cancelled":            {func(j *Judgement) { j.How.State = "CANCELLED" }, false},
		"the server failed, beside one": {func(j *Judgement) {
			j.Run.MPSFault, j.Run.CoRunners = true, []CoRunner{{Ref: "8", App: "b", AtEnd: true}}
		}, false},
	} {
		j := failedSoon(4)
		c.set(j)
		o := j.Judge(nil)
		if o.Unserved != c.want || c.want && (!o.Ours || o.Suspect == "" || len(o.Blamed) != len(j.Run.CoRunners)) {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// An application stays alone if the run without MPS ended well.
func TestCantRunUnderMPS(t *testing.T) {
	for name, c := range map[string]struct {
		set  func(j *Judgement)
		want bool
	}{
		"ended well alone": {func(*Judgement) {}, true},
		"failed alone":     {func(j *Judgement) { j.How.State = "FAILED" }, false},
		"others of it ended well under MPS meanwhile": {func(j *Judgement) { j.Served = true }, false},
		"not after that": {func(j *Judgement) { j.Unserved = false }, false},
	} {
		j := failedSoon(4)
		j.How.State, j.Alone, j.Unserved, j.Member.Shares = "COMPLETED", true, true, 100
		c.set(j)
		must.Equal(t, j.Judge(nil).NoMPS, c.want, name)
	}
}

// A job alone under MPS falls with its server, which plain Slurm would not have given it: it runs again without one,
// unless a process of its own is known to have faulted, or its application to fail alone.
func TestFellAloneWithItsServer(t *testing.T) {
	for name, c := range map[string]struct{ fault, own, failsAlone, ours bool }{
		"the server failed":                {fault: true, ours: true},
		"it failed":                        {},
		"a process of its own faulted":     {fault: true, own: true},
		"its application fails alone, too": {fault: true, failsAlone: true},
	} {
		j := failedSoon(60)
		j.Run.MPSFault, j.Run.Faulted, j.FailsAlone = c.fault, c.own, c.failsAlone
		must.Equal(t, j.Judge(nil).Ours, c.ours, name)
	}
}

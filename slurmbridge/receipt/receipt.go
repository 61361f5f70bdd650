// Package receipt works out what the bridge did in some days, and what it would have done in shadow mode:
// jobs grouped, GPU-hours, slowdowns, waits, contracts, memory failures, what the guard
// refused. It reads nothing itself: Make is a pure function of the runs that ended.
package receipt

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/adopt"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Input is what a receipt is made from.
type Input struct {
	From, To time.Time
	Mode     job.Mode // of the settings, for runs that no poll showed
	Jobs     []history.Run
	Refused  []history.Refused
	// Rule returns the rule in shadow that would have adopted a run, nil = none; without it no rule is in shadow.
	Rule func(j *history.Run) *adopt.Rule
	// Replay is the world in which the jobs are replayed; nil = they aren't.
	Replay *World
}

// Receipt is what sharing brought and cost. Times are in hours, slowdowns run time together ÷
// alone.
type Receipt struct {
	From     time.Time      `json:"from"`
	To       time.Time      `json:"to"`
	Modes    map[string]int `json:"jobs_by_mode"`
	Policies []string       `json:"policies"`
	Jobs     int            `json:"jobs"`
	Users    int            `json:"users"`
	Shared   int            `json:"jobs_shared"`   // that shared a GPU
	Grouped  int            `json:"jobs_grouped"`  // in groups of several that were made
	Groups   int            `json:"groups"`        // of several that were made
	Intended int            `json:"jobs_intended"` // that would have shared one in shadow mode
	// Eligible jobs are of a whole GPU, used little of it, and are matched by rules that are in shadow.
	Eligible int    `json:"jobs_eligible,omitempty"`
	Kinds    []Kind `json:"kinds,omitempty"`
	Hours    Hours  `json:"gpu_hours"`
	// Predicted covers the groups that were made, in shadow those intended.
	Predicted Slowdown `json:"slowdown_predicted"`
	Seen      Slowdown `json:"slowdown_seen"`
	// Points are the runs with a slowdown that was predicted and seen.
	Points    []*history.Outcome `json:"slowdowns,omitempty"`
	Contracts Contracts          `json:"contracts"`
	// Failures are runs that failed, or ran out of time, while sharing, which may be the reason; the latest first.
	Failures []*history.Outcome `json:"failures"`
	Harm     history.Harmed     `json:"harm"`
	Turn     history.Turn       `json:"turn"`
	Lent     Lent               `json:"lent"`
	Apps     history.Seen       `json:"applications"`
	Refused  []history.Refused  `json:"guard"`
	Replay   *Replay            `json:"replay,omitempty"`
	// NoReplay says why there is no replay.
	NoReplay string   `json:"no_replay,omitempty"`
	Method   []string `json:"method"`
}

// Hours compares the GPU-hours that jobs took with the hours that they would have taken one by one.
type Hours struct {
	Used float64 `json:"used"` // at least one job on the GPU
	// OneByOne: runs alone as they were, shared runs by their profiles.
	OneByOne float64 `json:"one_by_one"`
	Saved    float64 `json:"saved"`
	// How much of OneByOne was measured, and how much is an estimate by profile or by
	// the predicted slowdown.
	Measured  float64 `json:"measured"`
	ByProfile float64 `json:"by_profile"`
	ByGuess   float64 `json:"by_slowdown"`
	Lost      float64 `json:"lost"` // used by runs that failed, perhaps for having shared
}

// Slowdown sums up slowdowns.
type Slowdown struct {
	Jobs  int     `json:"jobs"`
	Mean  float64 `json:"mean,omitempty"`
	P95   float64 `json:"p95,omitempty"`
	Worst float64 `json:"worst,omitempty"`
	Of    string  `json:"worst_job,omitempty"`
}

// Contracts counts the runs that shared a GPU under a contract.
type Contracts struct {
	Kept   int                `json:"kept"`
	Broken int                `json:"broken"`
	List   []*history.Outcome `json:"broken_list,omitempty"` // the worst first
}

// Lent is by how much time limits were raised because sharing had slowed the jobs.
type Lent struct {
	Jobs  int     `json:"jobs"`
	Hours float64 `json:"hours"`
}

// Make works a receipt out.
func Make(in *Input) *Receipt {
	r := &Receipt{
		From: in.From, To: in.To, Modes: map[string]int{}, Jobs: len(in.Jobs), Refused: in.Refused,
		Policies: []string{}, Failures: []*history.Outcome{}, Method: []string{},
	}
	if r.Refused == nil {
		r.Refused = []history.Refused{}
	}
	users := map[string]bool{}
	active := 0
	for i := range in.Jobs {
		j := &in.Jobs[i]
		mode := cmp.Or(j.Mode, in.Mode)
		r.Modes[string(mode)]++
		users[j.User] = true
		if j.Outcome != nil && j.Outcome.Shared() {
			r.Shared++
		}
		if mode == job.Active {
			active++
		}
	}
	r.Users = len(users)
	r.decided(in)
	r.hours(in.Jobs)
	r.outcomes(history.Outcomes(in.Jobs))
	r.method(in, active)
	switch {
	case in.Replay == nil:
		r.NoReplay = "it was not requested"
	default:
		var err error
		if r.Replay, err = in.Replay.Replay(in.Jobs); err != nil {
			r.NoReplay = err.Error()
		}
	}
	return r
}

// decided counts what was grouped, or would have been, and sums the predictions up.
func (r *Receipt) decided(in *Input) {
	policies, groups, would := map[string]bool{}, map[int64]bool{}, map[string]bool{}
	var predicted []valued
	for i := range in.Jobs {
		j := &in.Jobs[i]
		d := &j.Decided
		policies[d.Policy] = true
		switch {
		case d.Beside == 0:
		case d.Group > 0:
			r.Grouped++
			groups[d.Group] = true
		default:
			r.Intended++
			would[j.Ref] = true
		}
		if d.Beside > 0 && d.Predicted > 0 {
			predicted = append(predicted, valued{j.Ref, d.Predicted})
		}
		if in.Rule != nil && in.Rule(j) != nil {
			if little, _ := wouldShare(j); little {
				would[j.Ref] = true
				r.Eligible++
			}
		}
	}
	delete(policies, "")
	r.Groups, r.Kinds, r.Predicted = len(groups), kinds(in, would), summary(predicted)
	r.Policies = append(r.Policies, slices.Sorted(maps.Keys(policies))...)
	r.Apps = history.CountSeen(len(in.Jobs), func(i int) (user, app string) { return in.Jobs[i].User, in.Jobs[i].App })
}

func (r *Receipt) hours(jobs []history.Run) {
	type span struct{ from, to time.Time }
	on := map[string][]span{}
	h := &r.Hours
	for i := range jobs {
		j := &jobs[i]
		if !j.Took() {
			continue
		}
		n := float64(max(1, len(j.GPUs)))
		for _, g := range j.GPUNames() {
			on[g] = append(on[g], span{j.Start, j.End})
		}
		took := j.End.Sub(j.Start).Hours()
		if len(j.GPUs) == 0 {
			h.Used += took // its GPU is not known: it counts as one of its own
		}
		switch solo, basis := j.Solo(); basis {
		case history.Measured:
			h.Measured += took * n
		case history.ByProfile:
			h.ByProfile += solo / 3600 * n
		case history.BySlowdown:
			h.ByGuess += solo / 3600 * n
		case history.Lost:
			h.Lost += n * took
		}
	}
	for _, gpu := range slices.Sorted(maps.Keys(on)) { // in order: a sum of floats depends on the order
		spans := on[gpu]
		slices.SortFunc(spans, func(a, b span) int { return a.from.Compare(b.from) })
		var end time.Time
		for _, s := range spans {
			if s.from.After(end) {
				end = s.from
			}
			if s.to.After(end) {
				h.Used += s.to.Sub(end).Hours()
				end = s.to
			}
		}
	}
	h.OneByOne = h.Measured + h.ByProfile + h.ByGuess
	h.Saved = h.OneByOne - h.Used
}

// Sharing sums up what came of runs: what a receipt says by outcomes alone.
func Sharing(all []*history.Outcome) *Receipt {
	r := new(Receipt)
	r.outcomes(all)
	return r
}

func (r *Receipt) outcomes(all []*history.Outcome) {
	var seen []valued
	r.Harm, r.Turn = history.CountHarm(all), history.CountTurn(all)
	for _, o := range all {
		if o.LentS > 0 {
			r.Lent.Jobs++
			r.Lent.Hours += o.LentS / 3600
		}
		if o.Suspect != "" {
			r.Failures = append(r.Failures, o)
		}
		if !o.Shared() || !(o.Slowdown > 0) {
			continue
		}
		seen = append(seen, valued{o.Ref, o.Slowdown})
		if o.Predicted > 0 {
			r.Points = append(r.Points, o)
		}
		switch {
		case o.Broken:
			r.Contracts.Broken++
			r.Contracts.List = append(r.Contracts.List, o)
		case o.Contract > 0:
			r.Contracts.Kept++
		}
	}
	r.Seen = summary(seen)
	slices.SortStableFunc(r.Contracts.List, func(a, b *history.Outcome) int {
		return cmp.Compare(b.Slowdown/b.Contract, a.Slowdown/a.Contract)
	})
	slices.SortStableFunc(r.Failures, func(a, b *history.Outcome) int { return b.End.Compare(a.End) })
}

type valued struct {
	ref string
	v   float64
}

func summary(all []valued) Slowdown {
	all = slices.DeleteFunc(all, func(x valued) bool { return math.IsNaN(x.v) || math.IsInf(x.v, 0) })
	if len(all) == 0 {
		return Slowdown{}
	}
	slices.SortFunc(all, func(a, b valued) int { return cmp.Or(cmp.Compare(a.v, b.v), cmp.Compare(a.ref, b.ref)) })
	s := Slowdown{
		Jobs: len(all), Worst: all[len(all)-1].v, Of: all[len(all)-1].ref,
		P95: all[min(len(all)-1, int(0.95*float64(len(all))))].v,
	}
	for _, x := range all {
		s.Mean += x.v / float64(len(all))
	}
	return s
}

// method says, for people, where the figures come from.
func (r *Receipt) method(in *Input, active int) {
	r.Method = append(r.Method,
		"Counted are the jobs with GPUs that ended in this time and were noted by the daemon or recorded by their node.",
		"GPU-hours used: the time in which at least one of them was on a GPU. One by one: the measured time of runs that "+
			"ran alone; for shared runs their applications' solo durations by profile, which is an estimate, or for runs "+
			"without one (cancelled, timed out) their time divided by the predicted slowdown, or by the number of sharers "+
			"without a prediction. Runs that failed because of co-runners count as used and as worth nothing.",
		"Measured slowdown: the run's time over its application's solo duration, for complete runs of known applications.")
	if r.Turn.Jobs > 0 {
		r.Method = append(r.Method,
			"Turnaround is the time from submission to end. Plain Slurm's is an estimate: next to the real schedule the "+
				"daemon keeps one in which each job has whole GPUs, in order of priority, for its time alone.")
	}
	if active < len(in.Jobs) {
		r.Method = append(r.Method,
			"In shadow mode nothing was changed: the groups are those of the last plan with each job before Slurm started "+
				"it; their effect is the replay's estimate.")
	}
	r.Method = append(r.Method,
		"Guard: jobs with this reason at least once, and the number of rounds with it, counted once per job and round. "+
			"Waited is what a reason cost: while a GPU that had room got no job, the first job that the guard refused there "+
			"waited for that reason. A job may wait for several reasons at once, so that they don't add up; each is about "+
			"what its setting could save that job, not the jobs behind it.")
}

// Package receipt computes what the bridge did in some days, and would have done in shadow mode: jobs grouped,
// GPU-hours, slowdowns, waits, contracts, memory failures, and the guard's vetoes. Make is a pure function.
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
	From, To   time.Time
	Jobs       []history.Run
	VetoCounts []history.VetoCount
	// Rule returns the rule in shadow that would have adopted a run, nil = none; without it no rule is in shadow.
	Rule func(j *history.Run) *adopt.Rule
	// Replay is the world in which to replay the jobs; nil = no replay.
	Replay *World
}

// Receipt is what sharing saved and cost. Times are in hours; a slowdown is run time together ÷ alone.
type Receipt struct {
	From     time.Time      `json:"from"`
	To       time.Time      `json:"to"`
	Modes    map[string]int `json:"jobs_by_mode"` // or unseen
	Policies []string       `json:"policies"`
	Jobs     int            `json:"jobs"`
	Users    int            `json:"users"`
	Shared   int            `json:"jobs_shared"`   // that shared a GPU
	Grouped  int            `json:"jobs_grouped"`  // in groups of several that were made
	Groups   int            `json:"groups"`        // of several that were made
	Intended int            `json:"jobs_intended"` // that shadow mode would have made share
	// Eligible counts whole-GPU jobs that used little of their GPU and match rules in shadow.
	Eligible int    `json:"jobs_eligible,omitempty"`
	Kinds    []Kind `json:"kinds,omitempty"`
	Hours    Hours  `json:"gpu_hours"`
	// Predicted covers the groups that were made, or in shadow intended.
	Predicted Slowdown `json:"slowdown_predicted"`
	Seen      Slowdown `json:"slowdown_seen"`
	// Points are the runs with both a predicted and a measured slowdown.
	Points    []*history.Run `json:"slowdowns,omitempty"`
	Contracts Contracts      `json:"contracts"`
	// Failures are runs that failed or timed out while sharing, perhaps because of it; the latest first.
	Failures   []*history.Run      `json:"failures"`
	Harm       history.Harmed      `json:"harm"`
	Turn       history.Turn        `json:"turn"`
	Lent       Lent                `json:"lent"`
	Apps       history.OneTimers   `json:"applications"`
	VetoCounts []history.VetoCount `json:"guard"`
	Replay     *Replay             `json:"replay,omitempty"`
	// NoReplay says why there is no replay.
	NoReplay string   `json:"no_replay,omitempty"`
	Method   []string `json:"method"`
}

// unseen is the mode of runs that a node recorded but no poll showed: the daemon was off, or they were too short.
const unseen = "unseen"

// Hours compares the GPU-hours that jobs took with the hours that they would have taken one by one.
type Hours struct {
	Used float64 `json:"used"` // with at least one job on the GPU
	// OneByOne sums up solo runs as measured, and shared runs by their profiles.
	OneByOne float64 `json:"one_by_one"`
	Saved    float64 `json:"saved"`
	// The parts of OneByOne: measured, and estimated by profile or by the predicted slowdown.
	Measured  float64 `json:"measured"`
	ByProfile float64 `json:"by_profile"`
	ByGuess   float64 `json:"by_slowdown"`
	Lost      float64 `json:"lost"` // by runs that failed, perhaps because they shared
}

// Slowdown sums up slowdowns.
type Slowdown struct {
	Jobs  int     `json:"jobs"`
	Mean  float64 `json:"mean,omitempty"`
	P95   float64 `json:"p95,omitempty"`
	Worst float64 `json:"worst,omitempty"`
	Of    string  `json:"worst_job,omitempty"`

	all []float64
}

// Contracts counts the runs that shared a GPU under a contract.
type Contracts struct {
	Kept   int            `json:"kept"`
	Broken int            `json:"broken"`
	List   []*history.Run `json:"broken_list,omitempty"` // the worst first
}

// Lent sums up the time by which limits were raised because sharing had slowed the jobs.
type Lent struct {
	Jobs  int     `json:"jobs"`
	Hours float64 `json:"hours"`
}

// Make computes a receipt.
func Make(in *Input) *Receipt {
	r := Sharing(in.Jobs)
	r.From = in.From
	r.To = in.To
	r.Jobs = len(in.Jobs)
	r.Modes = map[string]int{}
	r.VetoCounts = append([]history.VetoCount{}, in.VetoCounts...)
	users := map[string]bool{}
	policies := map[string]bool{}
	groups := map[int64]bool{}
	of := map[string]*Kind{}
	busy := map[string]spans{}
	for i := range in.Jobs {
		j := &in.Jobs[i]
		d := &in.Jobs[i].Decided
		r.Modes[cmp.Or(string(j.Mode), unseen)]++
		users[j.User] = true
		policies[d.Policy] = true
		would := false
		switch {
		case !d.Beside:
		case d.Group > 0:
			r.Grouped++
			groups[d.Group] = true
		default:
			r.Intended++
			would = true
		}
		if d.Beside && d.Predicted > 0 {
			r.Predicted.add(j.Ref, d.Predicted)
		}
		if in.Rule != nil && in.Rule(j) != nil {
			if little, _ := wouldShare(j); little {
				r.Eligible++
				would = true
			}
		}
		name := kindOf(j)
		if of[name] == nil {
			of[name] = &Kind{Name: name}
		}
		of[name].add(j, would)
		r.Hours.add(j, busy)
	}
	delete(policies, "")
	r.Users = len(users)
	r.Groups = len(groups)
	r.Policies = slices.AppendSeq(r.Policies, maps.Keys(policies))
	slices.Sort(r.Policies)
	r.Apps = history.CountOneTimers(in.Jobs)
	for _, name := range slices.Sorted(maps.Keys(of)) {
		r.Kinds = append(r.Kinds, *of[name])
	}
	for _, gpu := range slices.Sorted(maps.Keys(busy)) { // sorted, since a sum of floats depends on the order
		r.Hours.Used += busy[gpu].length()
	}
	r.Hours.OneByOne = r.Hours.Measured + r.Hours.ByProfile + r.Hours.ByGuess
	r.Hours.Saved = r.Hours.OneByOne - r.Hours.Used
	r.Predicted.finish()
	r.method(r.Modes[string(job.Shadow)] > 0)
	if in.Replay == nil {
		r.NoReplay = "it was not requested"
		return r
	}
	var err error
	if r.Replay, err = in.Replay.Replay(in.Jobs); err != nil {
		r.NoReplay = err.Error()
	}
	return r
}

// add adds a run, and its time on each GPU to busy.
func (h *Hours) add(j *history.Run, busy map[string]spans) {
	if !j.Took() {
		return
	}
	for _, gpu := range j.GPUNames() {
		busy[gpu] = append(busy[gpu], span{hours(j.Start), hours(j.End)})
	}
	took := j.DurationS() / 3600
	n := float64(max(1, len(j.GPUs)))
	if len(j.GPUs) == 0 {
		h.Used += took // an unknown GPU counts as not shared
	}
	solo, basis := j.Solo()
	switch basis {
	case history.Measured:
		h.Measured += took * n
	case history.ByProfile:
		h.ByProfile += solo / 3600 * n
	case history.BySlowdown:
		h.ByGuess += solo / 3600 * n
	case history.Lost:
		h.Lost += took * n
	}
}

// spans are periods that may overlap, in hours.
type (
	spans []span
	span  struct{ from, to float64 }
)

func hours(t time.Time) float64 { return float64(t.UnixMilli()) / 3.6e6 }

// length returns the length of the union of the spans.
func (all spans) length() (sum float64) {
	slices.SortFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	end := 0.0
	for _, s := range all {
		sum += max(0, s.to-max(end, s.from))
		end = max(end, s.to)
	}
	return sum
}

// Sharing computes the parts of a receipt that depend only on the outcomes of judged runs.
func Sharing(runs []history.Run) *Receipt {
	r := &Receipt{
		Policies: []string{}, Failures: []*history.Run{}, Method: []string{},
		Harm: history.CountHarm(runs), Turn: history.CountTurn(runs),
	}
	for i := range runs {
		if runs[i].Outcome != nil {
			r.share(&runs[i])
		}
	}
	r.Seen.finish()
	slices.SortStableFunc(r.Contracts.List, func(a, b *history.Run) int {
		return cmp.Compare(b.Outcome.Slowdown/b.Outcome.Contract, a.Outcome.Slowdown/a.Outcome.Contract)
	})
	slices.SortStableFunc(r.Failures, func(a, b *history.Run) int { return b.End.Compare(a.End) })
	return r
}

func (r *Receipt) share(j *history.Run) {
	o := j.Outcome
	if j.Ending.LentS > 0 {
		r.Lent.Jobs++
		r.Lent.Hours += j.Ending.LentS / 3600
	}
	if o.Suspect != "" {
		r.Failures = append(r.Failures, j)
	}
	if !j.Shared() {
		return
	}
	r.Shared++
	if !(o.Slowdown > 0) {
		return
	}
	r.Seen.add(j.Ref, o.Slowdown)
	if j.Predicted() > 0 {
		r.Points = append(r.Points, j)
	}
	switch {
	case o.Broken:
		r.Contracts.Broken++
		r.Contracts.List = append(r.Contracts.List, j)
	case o.Contract > 0:
		r.Contracts.Kept++
	}
}

func (s *Slowdown) add(ref string, v float64) {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return
	}
	s.all = append(s.all, v)
	if v > s.Worst || v == s.Worst && ref > s.Of {
		s.Worst = v
		s.Of = ref
	}
}

func (s *Slowdown) finish() {
	slices.Sort(s.all)
	s.Jobs = len(s.all)
	for _, v := range s.all {
		s.Mean += v / float64(s.Jobs)
	}
	if s.Jobs > 0 {
		s.P95 = s.all[min(s.Jobs-1, int(0.95*float64(s.Jobs)))]
	}
	s.all = nil
}

// method explains, for people, how the figures are computed.
func (r *Receipt) method(shadow bool) {
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
	if shadow {
		r.Method = append(r.Method,
			"In shadow mode nothing was changed: the groups are those of the last plan with each job before Slurm started "+
				"it; their effect is the replay's estimate.")
	}
	r.Method = append(r.Method,
		"Guard: jobs with this reason at least once, and the number of polls with it, counted once per job and poll. "+
			"Waited is what a reason cost: while a GPU that had room got no job, the first job that would have joined but for "+
			"one reason waited for that. A job may wait for several reasons at once, so that they don't add up; each is about "+
			"what its setting could save that job, not the jobs behind it.")
}

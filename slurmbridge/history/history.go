package history

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// Record is a node's record as it is kept.
type Record struct {
	ID  int64 // ascending in the order the records came
	App string
	gpuprof.Record
}

// Records are the nodes' records and the profiles that were made from them.
type Records interface {
	// After returns up to limit records that came after record id, oldest first.
	After(ctx context.Context, id int64, limit int) ([]Record, error)
	// Ended calls f for each run that ended in [from, to) by the controller's clock, in order. The record is
	// f's only until it returns: records are large.
	Ended(ctx context.Context, from, to time.Time, f func(*Record) error) error
	// Ends returns when the runs of the records numbered in (after, upTo] ended, by the controller's clock.
	Ends(ctx context.Context, after, upTo int64) ([]time.Time, error)
	// AppOf returns the application that was recognised in a job, "" = none.
	AppOf(ctx context.Context, ref, user string) (app string, err error)
	// Known returns what is known of a user's application, nil = nothing.
	Known(ctx context.Context, user, app, card string) (*rlcore.Profile, error)
	// Learn makes a run part of its application's profile, where it can.
	Learn(ctx context.Context, app string, r *gpuprof.Record) (bool, error)
}

// Journal is what polls showed, and what was concluded from runs.
type Journal interface {
	// Ended returns up to limit runs that polls showed to have ended in [from, to), the latest first.
	Ended(ctx context.Context, from, to time.Time, limit int) ([]Run, error)
	// FirstEnd returns when the first of these runs ended, zero = there are none.
	FirstEnd(ctx context.Context) (time.Time, error)
	// TaskName names the job that had this number in that time: numbers are reused, and numbers of
	// array tasks are not their names.
	TaskName(ctx context.Context, id int64, start, end time.Time) (ref string, err error)
	// Account returns the account of a job's run that started about then, "" = no poll showed it.
	Account(ctx context.Context, ref string, start time.Time) (string, error)
	// Outcomes returns the outcomes of runs that ended in [from, to), in the order of their records.
	Outcomes(ctx context.Context, from, to time.Time) ([]Outcome, error)
	// LastOutcome returns the number of the last record that has an outcome, 0 = none has.
	LastOutcome(ctx context.Context) (int64, error)
	// FarEnds returns the ends of runs with outcomes numbered in (after, upTo] that polls show more than so long after their records.
	FarEnds(ctx context.Context, after, upTo int64, behind time.Duration) ([]FarEnd, error)
	// SetEnd corrects when polls showed that a run had ended.
	SetEnd(ctx context.Context, e *FarEnd) error
	// SaveOutcome writes an outcome down, in place of an earlier one of the same run.
	SaveOutcome(ctx context.Context, o *Outcome) error
}

// FarEnd is the end of a run that polls showed well after its record: there had been none for a while.
type FarEnd struct {
	Ref                   string
	Start, Polled, Really time.Time
}

// History reads the runs that have ended from where their parts are kept. It implements Runs.
type History struct {
	Records Records
	Journal Journal
}

const (
	// KeptFor is how long runs are kept.
	KeptFor = 90 * 24 * time.Hour
	// mostRuns bounds how many of the runs that polls showed are read.
	mostRuns = 1_000_000
	// judgedAtOnce is how many runs one poll judges at most.
	judgedAtOnce = 200
	// sameTime is how far the times of a record and of a poll may lie apart for the same run: Slurm takes its
	// time from a job's start to its prolog.
	sameTime = 10 * time.Minute
	// shownLate is how long after its end a poll shows that a job is gone, at most.
	shownLate = time.Hour
	// atEnd is how close to a run's end another job must have been there to count as there when it ended:
	// nodes sample, and the members of a group end one by one.
	atEnd = 5 * time.Second
)

// Ended returns the runs that ended in [from, to), each once: first runs that polls showed, the
// latest first, joined with their records, then runs that only a record shows.
func (h *History) Ended(ctx context.Context, from, to time.Time) ([]Run, error) {
	past, err := h.Journal.Outcomes(ctx, from.Add(-KeptFor), to.Add(sameTime))
	if err != nil {
		return nil, err
	}
	runs, err := h.joined(ctx, from, to, past, nil)
	if err != nil {
		return nil, err
	}
	known := h.known(ctx)
	for i := range runs {
		r := &runs[i]
		if r.Profile, err = known(r.User, r.App, gpuprof.CardOf(r.Devices)); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// known returns Records.Known, which is asked once for each application.
func (h *History) known(ctx context.Context) func(user, app, card string) (*rlcore.Profile, error) {
	all := map[[3]string]*rlcore.Profile{}
	return func(user, app, card string) (p *rlcore.Profile, err error) {
		p, ok := all[[3]string{user, app, card}]
		if !ok {
			if p, err = h.Records.Known(ctx, user, app, card); err == nil {
				all[[3]string{user, app, card}] = p
			}
		}
		return p, err
	}
}

// joined is Ended without profiles, given the outcomes of that time. see is called for each record with what is
// made of it; nil = it isn't.
func (h *History) joined(ctx context.Context, from, to time.Time, past []Outcome, see func(*Record, *Run) error) ([]Run, error) {
	// What lies at a bound of the period may be within it by the one, and out of it by the other.
	shown, err := h.Journal.Ended(ctx, from.Add(-sameTime), to.Add(shownLate), mostRuns)
	if err != nil {
		return nil, err
	}
	outcomes := make(map[int64]*Outcome, len(past))
	for i := range past {
		outcomes[past[i].Run] = &past[i]
	}
	var recorded []Run
	if err := h.Records.Ended(ctx, from.Add(-shownLate), to.Add(sameTime), func(rec *Record) error {
		r := recordedRun(rec)
		r.Outcome = outcomes[r.ID]
		if see != nil && !r.End.Before(from.Add(-sameTime)) {
			if err := see(rec, &r); err != nil {
				return err
			}
		}
		recorded = append(recorded, r)
		return nil
	}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(join(shown, recorded), func(r Run) bool {
		return r.Start.IsZero() || r.End.Before(from) || !r.End.Before(to)
	}), nil
}

// recordedRun is a run as its record shows it, by the controller's clock.
func recordedRun(rec *Record) Run {
	r := Run{
		ID: rec.ID, Ref: rec.Ref(), User: rec.User, App: rec.App, Terms: job.ParseTerms(rec.Comment),
		Start: rec.ControllerTime(rec.Start), End: rec.ControllerTime(rec.End), Node: rec.Node, Devices: rec.GPUs, PeakMemMiB: rec.Peak.MemMiB,
		Complete: len(rec.GPUs) == 1 && !rec.Cut && len(rec.Series) > 0 && !rec.NoEpilog, MPSFault: !rec.MPSFault.IsZero(), WithoutMPS: rec.WithoutMPS, Host: rec.Host,
	}
	for i := range rec.GPUs {
		r.GPUs = append(r.GPUs, rec.GPUs[i].Index)
	}
	if !rec.Shared {
		r.WholeGPUs = len(rec.GPUs)
	}
	return r
}

// join makes one run of what polls and a record show of it, or a record for each of its nodes. A job that was requeued has several
// of both: of those near enough, the nearest in time belong together.
func join(shown, recorded []Run) []Run {
	records := map[string][]int{} // by job
	for i := range recorded {
		records[recorded[i].Ref] = append(records[recorded[i].Ref], i)
	}
	type pair struct {
		shown, recorded int
		apart           time.Duration
	}
	var pairs []pair
	for i := range shown {
		for _, k := range records[shown[i].Ref] {
			if d, ok := apart(&shown[i], &recorded[k]); ok {
				pairs = append(pairs, pair{i, k, d})
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(a.apart, b.apart) })
	joined, used := make([]map[string]bool, len(shown)), make([]bool, len(recorded)) // nodes
	for _, p := range pairs {
		run, rec := &shown[p.shown], &recorded[p.recorded]
		switch on := joined[p.shown]; {
		case used[p.recorded] || on[rec.Node]:
			continue
		case on == nil:
			joined[p.shown] = map[string]bool{rec.Node: true}
			run.add(rec)
		case several(run.Node):
			on[rec.Node] = true
			run.merge(rec)
		default:
			continue
		}
		used[p.recorded] = true
	}
	for i := range recorded {
		if r := &recorded[i]; !used[i] {
			if r.Outcome != nil {
				r.Account = r.Outcome.Account
			}
			shown = append(shown, *r)
		}
	}
	return shown
}

// apart is the time between a run that polls showed and a record of the same job; false = they are of
// different runs. Where no poll showed the start, the ends are compared.
func apart(shown, recorded *Run) (time.Duration, bool) {
	d := recorded.Start.Sub(shown.Start).Abs()
	if shown.Start.IsZero() {
		d = recorded.End.Sub(shown.End).Abs()
	}
	return d, d < sameTime && (shown.Node == "" || shown.Node == recorded.Node || several(shown.Node))
}

// several reports whether a run was on several nodes, of which its Node is a list.
func several(node string) bool { return strings.ContainsAny(node, "[,") }

// merge adds the record of another of its nodes to a run.
func (r *Run) merge(rec *Run) {
	if rec.Start.Before(r.Start) {
		r.Start = rec.Start
	}
	if rec.End.After(r.End) {
		r.End = rec.End
	}
	r.Use = r.Use.and(rec.Use, len(r.GPUs), len(rec.GPUs))
	r.GPUs, r.Devices = slices.Concat(r.GPUs, rec.GPUs), slices.Concat(r.Devices, rec.Devices)
	r.PeakMemMiB += rec.PeakMemMiB
	r.Complete, r.MPSFault, r.WithoutMPS = false, r.MPSFault || rec.MPSFault, r.WithoutMPS || rec.WithoutMPS
	if r.Host != nil && rec.Host != nil {
		r.Host = &gpuprof.Host{Cores: r.Host.Cores + rec.Host.Cores, MemMiB: r.Host.MemMiB + rec.Host.MemMiB}
	}
	r.Outcome = cmp.Or(r.Outcome, rec.Outcome)
}

// add completes what polls showed of a run by its record, which knows best when and where the job ran.
func (r *Run) add(rec *Run) {
	shown := *r
	*r = *rec
	r.User, r.Account, r.Partition, r.Mode, r.Group = shown.User, shown.Account, shown.Partition, shown.Mode, shown.Group
	r.QOS, r.Reservation, r.Deadline = shown.QOS, shown.Reservation, shown.Deadline
	r.Allotted = shown.Start
	r.Submit, r.Ready, r.WholeGPUs, r.Shares = shown.Submit, shown.Ready, shown.WholeGPUs, shown.Shares
	r.App = cmp.Or(rec.App, shown.App)
	if several(shown.Node) {
		r.Node = shown.Node
	}
	if r.Outcome != nil {
		r.Account = cmp.Or(r.Account, r.Outcome.Account)
	}
}

// Unjudged returns the runs with records that arrived since the last outcome, oldest first, some at
// a time.
func (h *History) Unjudged(ctx context.Context) ([]Run, error) {
	last, err := h.Journal.LastOutcome(ctx)
	if err != nil {
		return nil, err
	}
	records, err := h.Records.After(ctx, last, judgedAtOnce)
	if err != nil {
		return nil, err
	}
	runs, known := make([]Run, len(records)), h.known(ctx)
	for i := range records {
		rec := &records[i]
		runs[i] = recordedRun(rec)
		r := &runs[i]
		if r.Profile, err = known(r.User, r.App, rec.Card()); err != nil {
			return nil, err
		}
		if r.Account, err = h.Journal.Account(ctx, r.Ref, r.Start); err != nil {
			return nil, err
		}
		if r.CoRunners, err = h.coRunners(ctx, rec, known); err != nil {
			return nil, err
		}
	}
	return runs, nil
}

// coRunners are the neighbours of a record's run, in the record's order.
func (h *History) coRunners(ctx context.Context, rec *Record, known func(user, app, card string) (*rlcore.Profile, error)) (all []CoRunner, err error) {
	for _, n := range rec.Neighbours {
		c := CoRunner{Owner: n.User, OverlapS: max(0, n.To.Sub(n.From).Seconds()), AtEnd: rec.End.Sub(n.To) < atEnd}
		if c.Ref, err = h.Journal.TaskName(ctx, n.JobID, rec.ControllerTime(n.From), rec.ControllerTime(n.To)); err != nil {
			return nil, err
		}
		if c.App, err = h.Records.AppOf(ctx, c.Ref, n.User); err != nil {
			return nil, err
		}
		if c.Profile, err = known(n.User, c.App, rec.Card()); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Store writes an outcome down. Where it is Learned, the run becomes part of its application's profile.
func (h *History) Store(ctx context.Context, o *Outcome) error {
	if err := h.Journal.SaveOutcome(ctx, o); err != nil || !o.Learned {
		return err
	}
	records, err := h.Records.After(ctx, o.Run-1, 1)
	if err != nil || len(records) == 0 || records[0].ID != o.Run {
		return err
	}
	_, err = h.Records.Learn(ctx, records[0].App, &records[0].Record)
	return err
}

// Outcomes implements Runs.
func (h *History) Outcomes(ctx context.Context, from, to time.Time) ([]Outcome, error) {
	return h.Journal.Outcomes(ctx, from, to)
}

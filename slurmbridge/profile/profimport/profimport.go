// Package profimport makes profiles from data that a site has already recorded: Slurm's accounting
// (ReadSacct), and Prometheus with dcgm-exporter or nvidia_gpu_exporter (ReadPrometheus, Server),
// joined with accounting by job.
//
// Nothing is made up. A run counts where it completed, had one whole GPU, and its memory is known:
// a profile with a memory of 0, because it was not measured, would let any job share the GPU.
// Utilisation that isn't known counts as 100 %, SM use as 85 % of utilisation, PCIe traffic as
// none; a profile's Source says which of them were not measured. What is left out is counted by its
// reason.
package profimport

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
	"github.com/slurmbridge/slurmbridge/slurmbridge/slurm/text"
)

// Why a job is left out.
const (
	notCompleted = "that didn't complete"
	noGPU        = "without a GPU"
	manyGPUs     = "with several GPUs"
	shared       = "that shared a GPU"
	noMemory     = "without recorded GPU memory"
	noSeries     = "without series of their own"
	fewSamples   = "with samples of less than 90 % of the run"
	onMIG        = "on a MIG instance"
	whichGPU     = "on nodes with several GPUs, where nothing says which was theirs"
)

// coreShare is the part of the SMs taken to be busy while a kernel runs, as
// rlcore/table and rlcore/apps assume.
const coreShare = 0.85

// usable says why a job's run is no use; "" = it is.
func usable(j *Job) string {
	state, _, _ := strings.Cut(j.State, " ")
	switch {
	case j.Shared:
		return shared
	case j.GPUs == 0:
		return noGPU
	case j.GPUs > 1:
		return manyGPUs
	case state != "COMPLETED" || !j.End.After(j.Start) || j.Start.IsZero():
		return notCompleted
	}
	return ""
}

// Usable reports whether a job's run can become part of a profile.
func Usable(j *Job) bool { return usable(j) == "" }

// Run is one run of a job as a profile; Unknown lists what wasn't measured.
type Run struct {
	Job     *Job
	Profile *rlcore.Profile
	Unknown []string
	From    string // the run that these figures belong to
}

// FromSacct makes runs of what accounting alone says: each a constant use.
func FromSacct(jobs []Job) ([]Run, table.Skipped) {
	skipped := table.Skipped{}
	var out []Run
	for i := range jobs {
		j := &jobs[i]
		why := usable(j)
		if why == "" && j.MemMiB <= 0 {
			why = noMemory
		}
		if why != "" {
			skipped[why]++
			continue
		}
		r := Run{Job: j, From: "sacct", Unknown: []string{"SM use", "PCIe", "change over time"}}
		u := rlcore.Use{GPU: j.GPU, MemMiB: j.MemMiB}
		if u.GPU < 0 {
			u.GPU = 1
			r.Unknown = append([]string{"utilisation"}, r.Unknown...)
		}
		u.Core = coreShare * u.GPU
		length := j.End.Sub(j.Start).Seconds()
		r.Profile = &rlcore.Profile{DurationS: length, PeriodS: length, Series: []rlcore.Use{u}, Runs: 1}
		out = append(out, r)
	}
	return out, skipped
}

// Namer returns the application that a job ran.
type Namer func(*Job) appid.App

// ByName takes a job's name for its application's: jobs with the comment app=NAME then find the
// profile.
func ByName(j *Job) appid.App {
	name := strings.Map(func(c rune) rune {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', strings.ContainsRune("._-", c):
			return c
		}
		return '_'
	}, j.Name)
	return appid.App{Key: cmp.Or(name[:min(len(name), 64)], "unnamed")}
}

// Profiles joins the runs of each user's application into one profile: durations and
// their spread, at each part of the run the mean of what flows and the largest
// memory. Runs is 0, so that what the bridge measures itself takes its place.
func Profiles(runs []Run, name Namer) []store.Imported {
	type group struct {
		store.Imported
		first *Run
	}
	type key struct{ user, app string }
	groups := map[key]*group{}
	for i := range runs {
		r := &runs[i]
		app := name(r.Job)
		if app.Key == "" {
			app = ByName(r.Job)
		}
		p := *r.Profile
		p.App = app.Key
		k := key{r.Job.User, app.Key}
		if g := groups[k]; g != nil {
			g.Profile = gpuprof.Merge(g.Profile, &p, 0)
		} else {
			groups[k] = &group{store.Imported{User: r.Job.User, App: app, Profile: &p}, r}
		}
	}
	out := make([]store.Imported, 0, len(groups))
	for _, g := range groups {
		p := *g.Profile
		p.Source, p.Runs = source(g.first, p.Runs), 0
		g.Profile = &p
		out = append(out, g.Imported)
	}
	slices.SortFunc(out, func(a, b store.Imported) int {
		return cmp.Or(cmp.Compare(a.Profile.App, b.Profile.App), cmp.Compare(a.User, b.User))
	})
	return out
}

// source is a profile's of n runs like r.
func source(r *Run, n int) string {
	s := fmt.Sprintf("imported from %s (jobs: %d)", r.From, n)
	if len(r.Unknown) > 0 {
		s += "; not known: " + strings.Join(r.Unknown, ", ")
	}
	return s
}

// Job is one allocation that accounting knows, with what its steps used of a GPU.
type Job struct {
	ID, RawID  string // "120_4" and "124"; alike for what is no array's task
	User, Name string
	Nodes      string // a Slurm host list
	State      string
	Start, End time.Time
	GPUs       int
	Shared     bool // it held a part of a GPU
	// GPU is the fraction of time that a kernel ran, 0..1, MemMiB the most memory held
	// at once, MiB; -1 = not recorded.
	GPU, MemMiB float64
}

// SacctFormat is the format that sacct needs.
const SacctFormat = "JobID,JobIDRaw,JobName,User,State,Start,End,NodeList,NTasks,AllocTRES,TRESUsageInAve,TRESUsageInMax"

// mostMiB is more memory than any GPU has.
const mostMiB = 1e7

// ReadSacct reads what `sacct --parsable2 --format=`+SacctFormat prints, with its header; columns
// may stand in any order. Needed are JobIDRaw or JobID, JobName, User, State, Start, End and
// AllocTRES; NTasks where TRESUsageInMax is. Times without a zone are at loc. Errors are a
// *table.Error.
//
// Slurm samples what each task uses (JobAcctGatherFrequency, 30 s). TRESUsageInMax is the largest
// sample of any task, TRESUsageInAve the last sample's mean over tasks (jag_common_poll_data in
// Slurm's common_jag.c): so MemMiB is the maximum times the tasks, added up over steps that ran at
// one time, and GPU is the last sample's, or the largest where there is no other, by each step's
// part of the run. Cards without these figures print two zeros, which count as not recorded.
func ReadSacct(r io.Reader, name string, loc *time.Location) ([]Job, error) {
	s := sacct{loc: loc, jobs: map[string]*account{}}
	err := text.ReadSacct(r, name, s.begin, s.row)
	var where *table.Error
	if errors.As(err, &where) && errors.Is(err, table.ErrNoColumn) {
		where.Err = fmt.Errorf("%w; ask sacct for --parsable2 --format=%s", where.Err, SacctFormat)
	}
	if err != nil {
		return nil, err
	}
	if len(s.order) == 0 {
		return nil, &table.Error{File: name, Err: table.ErrNoRows}
	}
	out := make([]Job, 0, len(s.order))
	for _, a := range s.order {
		if a.seen {
			a.total()
			out = append(out, a.Job)
		}
	}
	return out, nil
}

// account is a job with its steps.
type account struct {
	Job
	seen  bool // its own row, not only steps'
	steps []step
}

type step struct {
	start, end time.Time
	gpu, mib   float64 // -1 = not recorded
}

// sacct is the reading of one file.
type sacct struct {
	loc     *time.Location
	raw, id string // columns to take a job's names from
	jobs    map[string]*account
	order   []*account
}

// begin checks that the columns are there.
func (s *sacct) begin(r *text.SacctRow) {
	s.raw = r.FirstOf("JobIDRaw", "JobID")
	if s.id = s.raw; r.Has("jobid") {
		s.id = "jobid"
	}
	for _, c := range []string{"JobName", "User", "State", "Start", "End", "AllocTRES"} {
		r.FirstOf(c)
	}
	if r.Has("tresusageinmax") {
		r.FirstOf("NTasks")
	}
}

// maxJobs bounds the jobs of a file.
const maxJobs = 1 << 20

func (s *sacct) row(r *text.SacctRow) {
	raw := cmp.Or(r.Text(s.raw), r.Text(s.id))
	number, stepName, isStep := strings.Cut(raw, ".")
	if number == "" || strings.Trim(number, "0123456789_+") != "" {
		r.Fail(s.raw, fmt.Errorf("%.40q is no job's number", raw))
		return
	}
	if len(s.jobs) > maxJobs {
		r.Fail("", errors.New("more than a million jobs; ask sacct for fewer days"))
		return
	}
	a := s.jobs[number]
	if a == nil {
		a = &account{}
		s.jobs[number] = a
		s.order = append(s.order, a)
	}
	start, end := r.Time("start", s.loc), r.Time("end", s.loc)
	if isStep {
		if stepName != "extern" {
			a.steps = append(a.steps, stepOf(r, start, end, stepName == "batch"))
		}
		return
	}
	// A requeued job has a row for each of its runs: the last counts.
	a.seen, a.steps = true, nil
	a.Job = Job{
		ID: cmp.Or(r.Text(s.id), raw), RawID: number, User: r.Text("user"), Name: r.Text("jobname"), Nodes: r.Text("nodelist"),
		State: r.Text("state"), Start: start, End: end,
	}
	a.GPUs, a.Shared = r.GPUs("alloctres")
}

// stepOf reads what a step used; a batch script is one task.
func stepOf(r *text.SacctRow, start, end time.Time, batch bool) step {
	tasks := 1.0
	if !batch {
		tasks = max(r.NumberOr("ntasks", 0, 1<<31, 1), 1)
	}
	most, last := r.Usage("tresusageinmax"), r.Usage("tresusageinave")
	st := step{start: start, end: end, gpu: -1, mib: -1}
	if mib := max(most.MemMiB, last.MemMiB) * tasks; mib > 0 && mib <= mostMiB {
		st.mib = mib
	}
	if util := cmp.Or(max(last.UtilPercent, 0), max(most.UtilPercent, 0)); util > 0 && st.mib > 0 {
		st.gpu = min(util*tasks/100, 1)
	} else if st.mib > 0 && (last.UtilPercent == 0 || most.UtilPercent == 0) {
		st.gpu = 0
	}
	return st
}

// total adds the steps up.
func (a *account) total() {
	a.GPU, a.MemMiB = -1, -1
	type event struct {
		at  time.Time
		mib float64
	}
	var events []event
	for _, st := range a.steps {
		if st.mib < 0 || st.start.IsZero() {
			continue
		}
		end := st.end
		if end.IsZero() {
			end = a.End
		}
		// What ends in the second in which the next begins may still have been there.
		events = append(events, event{st.start, st.mib}, event{end.Add(time.Second), -st.mib})
		if length := a.End.Sub(a.Start).Seconds(); st.gpu >= 0 && length > 0 {
			a.GPU = min(max(a.GPU, 0)+st.gpu*max(end.Sub(st.start).Seconds(), 0)/length, 1)
		}
	}
	slices.SortStableFunc(events, func(x, y event) int { return x.at.Compare(y.at) })
	held := 0.0
	for _, e := range events {
		held += e.mib
		a.MemMiB = max(a.MemMiB, held)
	}
}

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
	"fmt"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/appid"
	"github.com/slurmbridge/slurmbridge/slurmbridge/profile/store"
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
			g.Profile = gpuprof.Merge(g.Profile, &p)
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

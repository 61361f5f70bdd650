package soak

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/gpusim/app"
)

// marginS is how far Slurm's own times are off, s: whole seconds, and its looks at limits and deadlines.
const marginS = 30

// kind is a kind of harm as build/soak.json names it, and its title in the table; a campaign may not end with one that
// is fatal.
type kind struct {
	name, title string
	fatal       bool
}

var (
	timedOut = &kind{"timeout", "ended by their time limit", true}
	noMemory = &kind{"oom", "out of GPU memory", true}
	deadline = &kind{"deadline", "missed their deadline", true}
	lost     = &kind{"lost", "lost", true}
	inUse    = &kind{"gpu_in_use", "whole GPUs in use by others", true}
	wrongGPU = &kind{"wrong_gpu", "on a GPU that isn't theirs", true}
	failed   = &kind{"failed", "failed otherwise", false} // has a key of its own in build/soak.json
	contract = &kind{"contract", "slowed more than their contract", false}
	late     = &kind{"late", "late (of %d)", false}
	held     = &kind{"held_s_max", "held too long, s at most", false}
)

// harmKinds are all, the worst first.
var harmKinds = []*kind{timedOut, noMemory, deadline, lost, inUse, wrongGPU, failed, contract, late, held}

// harm is one way in which a job is worse off than on plain Slurm.
type harm struct {
	Kind string `json:"kind"`
	Job  string `json:"job"` // Slurm's number
	What string `json:"what"`
	Why  string `json:"why"`
	// ByS is by how much, s, where that is a time.
	ByS     float64  `json:"by_s,omitempty"`
	Start   float64  `json:"start,omitempty"` // Unix seconds
	Company []string `json:"company,omitempty"`
	Hits    []string `json:"hits,omitempty"`
}

// exitOOM is the exit status of the simulated application if it finds no memory.
const exitOOM = "2:0"

// judged reports whether a job can be late or slow.
func (j *job) judged() bool {
	return j.State == "COMPLETED" && !j.ownWay() && j.kept() && j.Restarts == 0 && j.fault == "" && !j.Fails
}

// judge returns what harm came to a job.
func (j *job) judge(pauseS float64) (out []harm) {
	add := func(k *kind, by float64, format string, args ...any) {
		h := harm{
			Kind: k.name, Job: cmp.Or(j.ID, j.name), What: j.String(), Hits: j.hits, ByS: math.Round(10*by) / 10,
			Why: fmt.Sprintf(format, args...),
		}
		for _, other := range j.with() {
			h.Company = append(h.Company, other.ID+" "+other.String())
		}
		if !math.IsNaN(j.Start) { // JSON has no NaN
			h.Start = j.Start
		}
		out = append(out, h)
	}
	ran := j.End - j.Start
	switch j.State {
	case "COMPLETED":
	case "TIMEOUT":
		if j.SoloS+pauseS <= j.limitS && j.fault == "" {
			add(timedOut, 0, "ended after %.0f s at its limit of %.0f s; it takes %.0f s alone", ran, j.limitS, j.SoloS)
		}
	case "DEADLINE":
		// Slurm cancels a job that waits once its limit doesn't fit before its deadline.
		latest, plainStart := j.at+j.DeadlineS-j.limitS, j.plainEnd-j.SoloS-pauseS
		if plainStart+marginS <= latest && j.fault == "" {
			add(deadline, 0, "would have started %.0f s before it had to for its deadline", latest-plainStart)
		}
	case "OUT_OF_MEMORY", "FAILED":
		switch {
		case j.Fails:
		case j.Exit == exitOOM:
			add(noMemory, 0, "found no GPU memory after %.0f s", ran)
		case j.fault == "":
			add(failed, 0, "ended with %s after %.0f s", j.Exit, ran)
		}
	case "NODE_FAIL", "BOOT_FAIL":
		if j.fault == "" {
			add(lost, 0, "ended as %s", j.State)
		}
	default:
		if j.kept() {
			add(lost, 0, "never ended, or not by its owner: %s", j.State)
		}
	}
	if j.inUse {
		add(inUse, 0, "has whole GPUs, and others were on them")
	}
	if j.wrongGPU != "" {
		add(wrongGPU, 0, "computed on %s", j.wrongGPU)
	}
	if !j.judged() {
		return out
	}
	if new(cluster.Lateness).Add(j.End, j.plainEnd, j.SoloS, 0) {
		add(late, j.End-j.plainEnd, "ended %.0f s after its plain end; it takes %.0f s alone", j.End-j.plainEnd, j.SoloS)
	}
	allowed := cmp.Or(j.Contract, maxSlowdown)
	if most := allowed*j.SoloS + pauseS + marginS; ran > most {
		add(contract, ran-most, "ran %.0f s, %.2f times its %.0f s alone; its contract is %g", ran,
			(ran-pauseS)/j.SoloS, j.SoloS, allowed)
	}
	return out
}

// with are the jobs that were seen on the job's GPUs, in the order of their names.
func (j *job) with() []*job {
	return slices.SortedFunc(maps.Keys(j.company), func(a, b *job) int { return cmp.Compare(a.name, b.name) })
}

// report is build/soak.json.
type report struct {
	Jobs int `json:"jobs"` // that came, an array's tasks each
	// Harm is how many jobs were worse off than on plain Slurm, by kind, and the longest that one was held, s.
	Harm   map[string]float64 `json:"harm"`
	Groups int                `json:"groups"` // times that jobs shared a GPU
	Kills  int                `json:"kills"`  // things that were done to the machine

	Seed    uint64  `json:"seed"`
	Slurm   string  `json:"slurm"`
	Seconds float64 `json:"seconds"`
	// Failed are jobs that ended with an error that is not their program's.
	Failed int `json:"failed"`
	// Judged are the jobs that late and contract are counted among.
	Judged int    `json:"judged"`
	Harmed []harm `json:"harmed"`
}

// sum judges every job.
func sum(jobs []*job, pauseS float64) *report {
	rep := &report{Jobs: len(jobs), Harm: map[string]float64{}, Harmed: []harm{}}
	for _, k := range harmKinds {
		rep.Harm[k.name] = 0
	}
	for _, j := range jobs {
		if j.judged() {
			rep.Judged++
		}
		for _, h := range j.judge(pauseS) {
			rep.Harmed = append(rep.Harmed, h)
			rep.Harm[h.Kind]++
		}
	}
	rep.Failed = int(rep.Harm[failed.name])
	delete(rep.Harm, failed.name)
	rank := func(h harm) int { return slices.IndexFunc(harmKinds, func(k *kind) bool { return k.name == h.Kind }) }
	slices.SortStableFunc(rep.Harmed, func(a, b harm) int { return rank(a) - rank(b) })
	return rep
}

// broken says in one line what a campaign may not end with, "" = nothing.
func (r *report) broken() string {
	var out []string
	for _, k := range harmKinds {
		if n := r.Harm[k.name]; k.fatal && n > 0 {
			out = append(out, fmt.Sprintf("%g × %s", n, k.name))
		}
	}
	return strings.Join(out, ", ")
}

// show prints it for people.
func (r *report) show(out io.Writer) {
	t := cluster.Table(out, "harm", "jobs")
	for _, k := range harmKinds {
		n, title := r.Harm[k.name], k.title
		switch k {
		case failed:
			n = float64(r.Failed)
		case late:
			title = fmt.Sprintf(title, r.Judged)
		}
		t.AppendRow(table.Row{title, fmt.Sprintf("%.0f", n)})
	}
	fmt.Fprintln(out)
	t.Render()
	fmt.Fprintf(out, "%d jobs in %.0f s on Slurm %s, %d times put together; %d faults (seed %d).\n", r.Jobs, r.Seconds,
		r.Slurm, r.Groups, r.Kills, r.Seed)
	for i, h := range r.Harmed {
		if i == 12 {
			fmt.Fprintf(out, "and %d more\n", len(r.Harmed)-i)
			break
		}
		fmt.Fprintf(out, "  %-8s %-6s %s (%s)\n", h.Kind, h.Job, h.Why, h.What)
	}
}

// report judges the jobs that slurmctld accepted and did not forget.
func (c *campaign) report(took time.Duration) *report {
	c.mu.Lock()
	defer c.mu.Unlock()
	pauseS := c.pauseS()
	c.plainEnds(pauseS + slurmPauseS)
	var jobs []*job
	heldS := 0.0
	for _, j := range c.jobs {
		heldS = max(heldS, math.Round(j.gate.tooLongS(lease.Seconds(), maxDelay.Seconds())))
		if !c.lost(j) && j.submitted != "" && (j.ID != "" || !c.unsaved(j)) {
			c.blame(j, pauseS+slurmPauseS)
			jobs = append(jobs, j)
		}
	}
	r := sum(jobs, pauseS)
	r.Harm[held.name], r.Seed, r.Slurm, r.Seconds = heldS, c.o.seed, c.s.Release, math.Round(took.Seconds())
	r.Kills, r.Groups = len(c.faults), len(c.groups)
	return r
}

// blame finds what hit a job that would have hit it on plain Slurm, too: its node's slurmd was gone while it ran, or
// slurmctld when it ended, was submitted or put back; and on which GPU it says that it computed.
func (c *campaign) blame(j *job, pauseS float64) {
	for _, f := range c.faults {
		ended := interval{f.From, f.To + aftermath}.has(j.End)
		on := f.node == j.node() && f.From < j.End+aftermath && f.To > j.Start
		switch {
		case f.Plain && (f.node == "" && ended || on):
			j.fault = f.Name
		case on || f.node == "" && f.From < j.End && f.To > j.Start:
			j.hits = append(j.hits, f.Name)
		}
	}
	if j.impossible && j.fault == "" {
		j.fault = badConstraints
	}
	report := c.s.Path("out", j.name)
	for _, p := range []struct {
		holds    bool
		from, to float64
	}{
		{j.State != "COMPLETED" && exists(report), j.Start, j.End}, // its work was done
		// A slurmctld that forgot that the job was put back takes it for running.
		{j.requeued > 0, j.requeued - aftermath, j.requeued + aftermath},
		// Plain Slurm's scheduler was gone as well when it would have started the job.
		{j.State == "DEADLINE", j.plainEnd - j.SoloS - pauseS, j.at + j.DeadlineS - j.limitS},
	} {
		if p.holds && j.fault == "" {
			j.fault = c.forgot(p.from, p.to)
		}
	}
	var said app.Report
	if body, err := os.ReadFile(report + ".json"); err == nil && json.Unmarshal(body, &said) == nil && said.Device != "" {
		if at := fmt.Sprintf("%s:%d", j.node(), said.Index); j.onGPU() && !slices.Contains(j.Places, at) && j.Restarts == 0 {
			j.wrongGPU = at + " instead of " + strings.Join(j.Places, ", ")
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// requeueS is how long a job that was put back waits before it may start again.
const requeueS = 120

// plainEnds sets when each job would have ended on plain Slurm.
func (c *campaign) plainEnds(pauseS float64) {
	var jobs []plainJob
	var of []*job // nil = a run before the job was put back
	byLife := map[int][]int{}
	for _, j := range c.jobs {
		if j.submitted == "" {
			continue
		}
		p := plainJob{
			Queued: j.at, Arrival: j.at + j.BeginS, RunS: j.SoloS, LimitS: j.limitS, GPUs: max(1, j.GPUs),
			Urgent: j.Partition == urgentPart,
			Held:   j.held, Until: j.gone, Partition: j.Partition, After: byLife[j.After],
		}
		if j.Fails {
			p.RunS = 0
		}
		if n := len(j.earlier); n > 0 {
			// What it ran before it was put back counts until then; after that it was new.
			first := p
			first.RunS = j.earlier[0].To - j.earlier[0].From
			jobs, of = append(jobs, first), append(of, nil)
			p.Arrival = max(p.Arrival, j.earlier[n-1].To+requeueS)
		}
		byLife[j.N] = append(byLife[j.N], len(jobs))
		jobs, of = append(jobs, p), append(of, j)
	}
	outages := merged(c.outages)
	for _, f := range c.faults {
		if f.Plain && f.node == "" {
			outages = append(outages, outage{f.interval, -1, "", true})
		}
	}
	plain(jobs, c.slots, outages, pauseS)
	for i, j := range of {
		if j != nil {
			j.plainEnd = jobs[i].Ran.To
		}
	}
}

// merged joins outages of the same GPU and partition that touch.
func merged(all []outage) []outage {
	last := map[outage]int{}
	var out []outage
	for _, o := range all {
		kind := o
		kind.interval = interval{}
		if i, ok := last[kind]; ok && o.From <= out[i].To+lookEvery/2 {
			out[i].To = max(out[i].To, o.To)
			continue
		}
		last[kind] = len(out)
		out = append(out, o)
	}
	return out
}

// pauseS is what a job's start and end take in addition to its solo time, s: the median of jobs with a GPU of their
// own.
func (c *campaign) pauseS() float64 {
	var over []float64
	for _, j := range c.jobs {
		if j.State == "COMPLETED" && len(j.company) == 0 && !j.shared && !j.Fails {
			over = append(over, j.End-j.Start-j.SoloS)
		}
	}
	return max(0, cluster.Quantile(0.5, over))
}

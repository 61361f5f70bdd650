package soak

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// campaign is one under way. Its fields below mu are shared by what submits, looks, acts
// for owners and does harm.
type campaign struct {
	o     *options
	s     *cluster.Stack
	known []*rlcore.Profile
	load  *cluster.Load

	mu      sync.Mutex
	lives   []life
	owned   []owned // by life
	jobs    map[string]*record
	faults  []fault
	kinds   map[string]int // of faults
	outages []outage
	// lastLook is when Slurm last answered; dead since when the bridge has not, 0 = it does.
	lastLook, dead float64
	pending        int
	groups         map[string]bool // sets of jobs that were seen together on a GPU
	busy           []float64       // of the machine's CPUs, by look
	slow           int             // looks that failed or took too long
	acted          map[string]int
	acts           sync.WaitGroup
}

// owned is what the owner of a life's job knows and did.
type owned struct {
	ID        string // Slurm's; "" = not submitted
	Submitted float64
	Gone      float64 // when it was cancelled; +Inf = never
	Requeued  float64 // 0 = never
	Held      []interval
	LimitS    float64
	// Forgotten: a killed slurmctld forgot the job, and gave its number to another.
	Forgotten bool
}

// record is what looks have shown of one job.
type record struct {
	seenJob
	at      float64 // when it was last seen
	life    int
	company map[string]bool
	shared  bool // ran on less than a GPU at some look
	earlier []span
	sights  []sight
	// impossible: just restarted, before its nodes were back, Slurm held the job for good.
	impossible bool
}

// fault is a thing that was done to the machine.
type fault struct {
	interval
	Kind string
	Node string // "" = not one node's
	// Plain: plain Slurm's jobs would have felt it too.
	Plain bool
}

// gpus is how many there are, and slot the number of one by node and index.
func (c *campaign) gpus() int {
	n := 0
	for _, g := range c.o.nodeGPUs {
		n += g
	}
	return n
}

// slots are the numbers of a node's GPUs.
func (c *campaign) slots(node string) []int {
	first := 0
	for i, g := range c.o.nodeGPUs {
		if slurmtest.NodeName(i) == node {
			var out []int
			for k := range g {
				out = append(out, first+k)
			}
			return out
		}
		first += g
	}
	return nil
}

// submit submits lives until the context ends, as many as keep the queue at its length, and no more
// than perSecond of them.
func (c *campaign) submit(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(c.o.seed, 1))
	end := now() + c.o.length.Seconds()
	for ctx.Err() == nil && now() < end {
		c.mu.Lock()
		n := len(c.lives)
		room := c.pending < c.o.backlog
		c.mu.Unlock()
		if c.o.jobs > 0 && n >= c.o.jobs {
			return
		}
		if !room || !c.rested() {
			wait(ctx, 0.5)
			continue
		}
		l := drawLife(rnd, n, c.known, now() > end-80)
		c.mu.Lock()
		c.lives = append(c.lives, l)
		c.owned = append(c.owned, owned{Gone: math.Inf(1), LimitS: 60 * float64(l.LimitMin)})
		c.pending += max(1, l.Tasks)
		c.mu.Unlock()
		c.acts.Go(func() { c.live(ctx, &l) })
		wait(ctx, rnd.ExpFloat64()/c.o.perSecond)
	}
}

// rested reports whether the machine has time to spare: a machine that hasn't is a harm of
// its own.
func (c *campaign) rested() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.busy) == 0 || c.busy[len(c.busy)-1] < mostBusy
}

// mostBusy is the part of the machine's CPU time from which on nothing is submitted.
const mostBusy = 0.85

// live submits a life's job, as its owner would while slurmctld is away: again and again;
// and does with it what its owner does.
func (c *campaign) live(ctx context.Context, l *life) {
	args := l.args(c.o.plain)
	if l.After >= 0 {
		if id := c.idOf(l.After); id != "" {
			args = append(args, "--dependency=afterany:"+id)
		} else {
			l.After = -1
			c.mu.Lock()
			c.lives[l.N].After = -1
			c.mu.Unlock()
		}
	}
	var id string
	for {
		var err error
		if id, err = c.s.Submit(ctx, l.User, c.script(l), args...); err == nil {
			break
		}
		c.count("submit refused")
		if !wait(ctx, 1) {
			return
		}
	}
	at := now()
	c.mu.Lock()
	for i := range c.owned {
		if w := &c.owned[i]; w.ID == id {
			w.Forgotten = true
		}
	}
	c.owned[l.N].ID, c.owned[l.N].Submitted = id, at
	c.mu.Unlock()
	for _, a := range l.Acts {
		if !wait(ctx, at+a.AtS-now()) {
			return
		}
		c.mu.Lock()
		forgotten := c.owned[l.N].Forgotten
		c.mu.Unlock()
		if forgotten {
			return // it would hit another's job
		}
		c.act(ctx, l, id, a)
	}
}

func (c *campaign) idOf(n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owned[n].ID
}

// script runs the life's application on any GPU of any node.
func (c *campaign) script(l *life) string {
	if l.Fails {
		return "exit 9\n"
	}
	var base float64
	for _, p := range c.known {
		if strings.HasPrefix(p.App, l.Base+"-") {
			base = p.DurationS
			break
		}
	}
	return fmt.Sprintf(`s=%s; [ $SLURMD_NODENAME = n1 ] || s=$s-$SLURMD_NODENAME
export GPUSIM_STATE=$s
%s run %s --profile %s --duration-scale %g || exit
: >%s/$SLURM_JOB_NAME${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
`, c.s.StateOf(0), c.s.Bin("gpusim"), l.Base, c.s.Path("apps", l.Base+".json"), l.SoloS/base, c.finished())
}

// finished is the folder where jobs leave a file after their work.
func (c *campaign) finished() string { return c.s.Path("out") }

// act does one thing for an owner. What Slurm refuses, since the job is further than its
// owner thought, is no harm.
func (c *campaign) act(ctx context.Context, l *life, id string, a act) {
	update := func(change string) error {
		_, err := c.s.RunAs(ctx, l.User, "scontrol", "update", "JobId="+id, change)
		return err
	}
	at := now()
	var err error
	switch a.What {
	case cancel:
		_, err = c.s.RunAs(ctx, l.User, "scancel", id)
	case requeue:
		_, err = c.s.RunAs(ctx, l.User, "scontrol", "requeue", id)
	case hold:
		_, err = c.s.RunAs(ctx, l.User, "scontrol", "hold", id)
	case letGo:
		_, err = c.s.RunAs(ctx, l.User, "scontrol", "release", id)
	case gres:
		err = update("Gres=mps:" + a.Arg)
	case timeLimit:
		err = update("TimeLimit=" + a.Arg)
	case dependency:
		err = update("Dependency=" + a.Arg)
	}
	if err != nil {
		c.count(a.What + " refused")
		if a.What == letGo {
			// A job that stays held would be its owner's loss.
			c.acts.Go(func() {
				if wait(ctx, 1) {
					c.act(ctx, l, id, a)
				}
			})
		}
		return
	}
	c.count(a.What)
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &c.owned[l.N]
	switch a.What {
	case cancel:
		w.Gone = at
	case requeue:
		w.Requeued = now()
	case hold:
		w.Held = append(w.Held, interval{at, math.Inf(1)})
	case letGo:
		if n := len(w.Held); n > 0 {
			w.Held[n-1].To = now()
		}
	case timeLimit:
		if m, err := strconv.Atoi(a.Arg); err == nil {
			w.LimitS = 60 * float64(m)
		}
	}
}

func (c *campaign) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acted[what]++
}

// badConstraints is Slurm's Reason for a job that no node seems to suit.
const badConstraints = "BadConstraints"

// lookEvery is the time between two looks, s.
const lookEvery = 4

// watch looks until the context ends.
func (c *campaign) watch(ctx context.Context) {
	for ctx.Err() == nil {
		l, err := see(ctx, c.s.Cluster)
		if ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		if err != nil {
			c.slow++
		} else {
			c.took(l)
		}
		if busy, ok := c.load.Since(); ok {
			c.busy = append(c.busy, busy)
		}
		c.mu.Unlock()
		wait(ctx, lookEvery)
	}
}

// took notes what a look shows.
func (c *campaign) took(l *look) {
	gap := interval{c.lastLook, l.At}
	if c.lastLook > 0 && gap.To-gap.From > lookEvery+lookTimeout.Seconds() {
		c.outages = append(c.outages, outage{interval: gap, GPU: -1, Ends: true})
	}
	c.lastLook = l.At
	there := map[string][]string{} // jobs by place
	used := map[string]int{}       // jobs by node
	for i := range l.Jobs {
		if j := &l.Jobs[i]; j.Place != "" && !over(j.State) {
			there[j.Place] = append(there[j.Place], j.Key)
			node, _, _ := strings.Cut(j.Place, ":")
			used[node]++
		}
	}
	for _, keys := range there {
		if len(keys) > 1 {
			slices.Sort(keys)
			c.groups[strings.Join(keys, " ")] = true
		}
	}
	idle := map[string]bool{} // partitions with an idle GPU in service
	for i, gpus := range c.o.nodeGPUs {
		name := slurmtest.NodeName(i)
		for _, p := range partitions {
			switch {
			case !l.Nodes[name][p]:
				for _, g := range c.slots(name) {
					c.outages = append(c.outages, outage{interval{l.At - lookEvery/2, l.At + lookEvery/2}, g, p, false})
				}
			case used[name] < gpus && (gpus == 1 || used[name] == 0):
				idle[p] = true
			}
		}
	}
	c.pending = 0
	for i := range l.Jobs {
		c.note(l, &l.Jobs[i], there, idle)
	}
	for i := range c.owned {
		if c.owned[i].ID == "" {
			c.pending++
		}
	}
}

// note takes down one job of a look.
func (c *campaign) note(l *look, j *seenJob, there map[string][]string, idle map[string]bool) {
	n, err := strconv.Atoi(strings.TrimPrefix(strings.Split(j.Key, "_")[0], "life"))
	if err != nil || n >= len(c.lives) {
		return
	}
	r := c.jobs[j.Key]
	if r == nil {
		r = &record{life: n, company: map[string]bool{}}
		c.jobs[j.Key] = r
	}
	if j.Restarts > r.Restarts && !math.IsNaN(r.Start) {
		r.earlier = append(r.earlier, span{r.Start, l.At})
	}
	r.seenJob, r.at = *j, l.At
	switch j.State {
	case "PENDING":
		c.pending++
		r.impossible = r.impossible || j.Reason == badConstraints
		gated := j.Reason == "Dependency" && strings.Contains(j.Dependency, "after:") && !strings.Contains(j.Dependency, "afterany")
		s := sight{At: l.At, Gated: gated, Idle: idle[c.lives[n].Partition]}
		if c.dead > 0 {
			s.DeadS = l.At - c.dead
		}
		if gated || len(r.sights) > 0 {
			r.sights = append(r.sights, s)
		}
	case "RUNNING", "COMPLETING":
		for _, k := range there[j.Place] {
			if k != j.Key {
				r.company[k] = true
			}
		}
		r.shared = r.shared || strings.Contains(j.Shares, "mps") && !strings.HasSuffix(j.Shares, ":100")
	}
}

// left are the jobs that have not ended.
func (c *campaign) left() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for i := range c.lives {
		w := &c.owned[i]
		for _, k := range c.lives[i].keys() {
			r := c.jobs[k]
			if c.lost(w, r) {
				continue
			}
			if r != nil && !over(r.State) || r == nil && math.IsInf(w.Gone, 1) && (w.ID == "" || !c.forgotten(w)) {
				out = append(out, k)
			}
		}
	}
	return out
}

// forgotten reports whether slurmctld was killed just after it had taken a job.
func (c *campaign) forgotten(w *owned) bool {
	return c.forgot(w.Submitted, w.Submitted+settle) != ""
}

// lost reports whether a killed slurmctld forgot a job that had been seen: looks don't show it
// any more since one was killed.
func (c *campaign) lost(w *owned, r *record) bool {
	return w.Forgotten || r != nil && !over(r.State) && c.lastLook-r.at > 2*lookEvery+lookTimeout.Seconds() && c.forgot(r.at-settle, r.at+settle) != ""
}

// drain waits until every job has ended, at most so long.
func (c *campaign) drain(ctx context.Context, most float64) {
	end := now() + most
	for now() < end && wait(ctx, 1) {
		left := c.left()
		if len(left) == 0 {
			return
		}
		// A requeued job waits for two minutes before it may start again; owners in a hurry say so.
		// A job is started twice, which fails, if a killed slurmctld had forgotten its start; Slurm
		// then holds the job, as it does if it found no nodes for it, and an operator releases it.
		c.mu.Lock()
		var begin, held []string
		for _, k := range left {
			switch r := c.jobs[k]; {
			case r != nil && r.Reason == "BeginTime":
				begin = append(begin, r.ID)
			case r != nil && (strings.HasPrefix(r.Reason, "launch_failed") || r.Reason == badConstraints):
				held = append(held, r.ID)
			}
		}
		c.mu.Unlock()
		for _, id := range begin {
			_, _ = c.s.Run(ctx, "scontrol", "update", "JobId="+id, "StartTime=now")
		}
		for _, id := range held {
			_, _ = c.s.Run(ctx, "scontrol", "release", id)
		}
		wait(ctx, lookEvery)
	}
}

// fates joins what was planned, what owners and faults did and what Slurm showed.
func (c *campaign) fates(pauseS float64) []fate {
	c.mu.Lock()
	defer c.mu.Unlock()
	ends := c.plainEnds(pauseS)
	var out []fate
	for i := range c.lives {
		l, w := &c.lives[i], &c.owned[i]
		if w.ID == "" {
			continue // slurmctld never took it
		}
		for _, key := range l.keys() {
			if c.lost(w, c.jobs[key]) {
				continue
			}
			f := fate{
				Key: key, What: l.String(), SoloS: l.SoloS, LimitS: w.LimitS, Contract: c.contract(l), OwnWay: l.ownWay(), Fails: l.Fails,
				Kept: math.IsInf(w.Gone, 1) && w.Requeued == 0, Arrival: w.Submitted + l.BeginS, Start: math.NaN(), End: math.NaN(), PlainEnd: ends[key],
			}
			if l.DeadlineS > 0 {
				f.Deadline = w.Submitted + l.DeadlineS
			}
			if r := c.jobs[key]; r != nil {
				f.Key = r.ID
				f.State, f.Exit, f.Start, f.End, f.Restarts = r.State, r.Exit, r.Start, r.End, r.Restarts
				for _, k := range slices.Sorted(maps.Keys(r.company)) {
					f.Company = append(f.Company, c.jobs[k].ID+" "+c.lives[c.jobs[k].life].String())
				}
				if f.Fault, f.Hits = c.fault(r); r.impossible && f.Fault == "" {
					f.Fault = badConstraints
				}
				if _, err := os.Stat(filepath.Join(c.finished(), key)); err == nil && f.State != "COMPLETED" && f.Fault == "" {
					f.Fault = c.forgot(f.Start, f.End)
				}
				if w.Requeued > 0 && f.Fault == "" {
					// One that forgot that the job was put back takes it for running.
					f.Fault = c.forgot(w.Requeued-settle, w.Requeued+settle)
				}
			}
			if f.State == "DEADLINE" && f.Fault == "" {
				// Plain Slurm's scheduler was gone as well when it would have started the job.
				f.Fault = c.forgot(f.PlainEnd-f.SoloS-pauseS, f.Deadline-f.LimitS)
			}
			if f.State == "" && c.forgotten(w) {
				continue
			}
			out = append(out, f)
		}
	}
	return out
}

func (c *campaign) contract(l *life) float64 {
	if l.Contract > 0 {
		return l.Contract
	}
	return c.o.contract
}

// fault is what hit a job that would have hit it on plain Slurm, too: its node's slurmd was
// gone while it ran, or slurmctld when it ended. hits is what else was done to its node.
func (c *campaign) fault(r *record) (fault string, hits []string) {
	node, _, _ := strings.Cut(r.Place, ":")
	for _, f := range c.faults {
		ended := interval{f.From, f.To + settle}.has(r.End)
		on := f.Node == node && f.From < r.End+settle && f.To > r.Start
		switch {
		case f.Plain && (f.Node == "" && ended || on):
			fault = f.Kind
		case on || f.Node == "" && f.From < r.End && f.To > r.Start:
			hits = append(hits, f.Kind)
		}
	}
	return fault, hits
}

// forgot is the death of slurmctld in this time that lost what it had not written down yet,
// the last seconds' jobs and ends; "" = there was none.
func (c *campaign) forgot(from, to float64) string {
	for _, f := range c.faults {
		if f.Plain && f.Node == "" && f.To > from && f.From < to {
			return f.Kind
		}
	}
	return ""
}

// settle is how long after a fault Slurm still feels it, s.
const settle = 10

// plainEnds is when each job would have ended on plain Slurm, by key.
func (c *campaign) plainEnds(pauseS float64) map[string]float64 {
	var jobs []plainJob
	var names []string
	byLife := map[int][]int{}
	for i := range c.lives {
		l, w := &c.lives[i], &c.owned[i]
		if w.ID == "" {
			continue
		}
		for _, key := range l.keys() {
			r := c.jobs[key]
			j := plainJob{
				Queued: w.Submitted, Arrival: w.Submitted + l.BeginS, RunS: l.SoloS, Held: w.Held, Until: w.Gone, Partition: l.Partition,
			}
			if l.Fails {
				j.RunS = 0
			}
			if l.After >= 0 {
				j.After = byLife[l.After]
			}
			if r != nil && len(r.earlier) > 0 {
				// What it ran before it was put back counts until then; after that it was new.
				first := j
				first.RunS = r.earlier[0].End - r.earlier[0].Start
				jobs, names = append(jobs, first), append(names, "")
				j.Arrival = max(j.Arrival, r.earlier[len(r.earlier)-1].End+requeueS)
			}
			byLife[i] = append(byLife[i], len(jobs))
			jobs, names = append(jobs, j), append(names, key)
		}
	}
	out := map[string]float64{}
	for i, s := range plain(jobs, c.gpus(), merged(c.outages), pauseS) {
		if names[i] != "" {
			out[names[i]] = s.End
		}
	}
	return out
}

// requeueS is how long a job that was put back waits before it may start again.
const requeueS = 120

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

// pause is what a job's start and end take in addition to its solo time: the median of jobs with a
// GPU of their own.
func (c *campaign) pause() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	var over []float64
	for _, r := range c.jobs {
		l := &c.lives[r.life]
		if r.State == "COMPLETED" && len(r.company) == 0 && !r.shared && !l.Fails {
			over = append(over, r.End-r.Start-l.SoloS)
		}
	}
	return max(0, cluster.Quantile(0.5, over))
}

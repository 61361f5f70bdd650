package soak

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// campaign is one under way. The fields below mu are shared by what submits, looks, acts for owners and does harm.
type campaign struct {
	o     *options
	s     *cluster.Stack
	known []*rlcore.Profile
	load  *cluster.Load
	line  *cluster.Line
	began float64
	slots []slot // GPUs, node by node
	// nodeGPUs are how many GPUs each node has.
	nodeGPUs []int

	mu      sync.Mutex
	lives   []*life
	jobs    []*job // of all lives
	byName  map[string]*job
	faults  []fault
	outages []outage // that looks show
	// lastLook is when Slurm last answered; dead since when the bridge has not, 0 = it does; until when to wait for the
	// last jobs, 0 = more come.
	lastLook, dead, until float64
	groups                map[string]bool // sets of jobs that were seen together on a GPU
	busy                  float64         // part of the CPUs' time since the last look, 0 = not known
}

// job is the job of a life, or a task of its array.
type job struct {
	*life
	name     string // as Slurm shows it
	shown           // as Slurm last showed it; ID "" = it never did
	seenAt   float64
	earlier  []interval // runs before it was put back
	gate     gate
	company  map[*job]bool
	shared   bool // ran on less than a GPU at some look
	inUse    bool // has whole GPUs, and ran next to another job
	wrongGPU string
	// impossible: just restarted, before its nodes were back, Slurm held the job for good.
	impossible bool
	// fault is what hit the job and would have hit it on plain Slurm as well, "" = nothing; hits is what else did.
	fault    string
	hits     []string
	plainEnd float64 // NaN = none
}

// fault is a thing that was done to the machine.
type fault struct {
	interval
	*cluster.Fault
	node string // "" = not one node's
}

// locked does something with the shared fields.
func (c *campaign) locked(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
}

// add adds a life and its jobs.
func (c *campaign) add(l *life) {
	c.lives = append(c.lives, l)
	none := math.NaN()
	for _, name := range l.names() {
		j := &job{
			life: l, name: name, shown: shown{Start: none, End: none}, company: map[*job]bool{}, plainEnd: none,
		}
		c.jobs, c.byName[name] = append(c.jobs, j), j
	}
}

// mostBusy is the part of the machine's CPU time from which on a life comes only each busyEvery seconds: a machine
// without time to spare is a harm of its own.
const (
	mostBusy  = 0.85
	busyEvery = 2
)

// perSecond is how many lives come a second at most, in the mean.
const perSecond = 6

// submit yields lives for the time in the options, as many as keep the queue at its length, and no more
// than perSecond of them.
func (c *campaign) submit(ctx context.Context, yield func(cluster.Order) bool) {
	rnd := rand.New(rand.NewPCG(c.o.seed, 1)) //nolint:gosec // repeatable, not secret
	end, last := now()+c.o.length.Seconds(), 0.0
	for n := 0; ctx.Err() == nil && now() < end && (c.o.jobs == 0 || n < c.o.jobs); {
		room := false
		c.locked(func() { room = c.waiting() < len(c.slots)*3/2 && (c.busy < mostBusy || now() > last+busyEvery) })
		if !room {
			cluster.Sleep(ctx, 0.5)
			continue
		}
		l := drawLife(rnd, n, c.known, now() > end-80)
		n++
		c.locked(func() { c.add(l) })
		last = now()
		args := l.args(c.o.plain)
		if l.After >= 0 {
			args = append(args, "--dependency=afterany:"+c.lives[l.After].submitted)
		}
		if !yield(cluster.Order{
			User: l.User, Script: l.script(c.s), Args: args,
			Submitted: func(id string) { c.live(ctx, l, id) },
		}) {
			return
		}
		cluster.Sleep(ctx, rnd.ExpFloat64()/perSecond)
	}
}

// live has a submitted life's owner do what is planned.
func (c *campaign) live(ctx context.Context, l *life, id string) {
	c.locked(func() {
		for _, other := range c.lives {
			other.forgotten = other.forgotten || other.submitted == id
		}
		l.submitted, l.at = id, now()
	})
	go func() {
		for _, a := range l.Acts {
			forgotten := false
			if !cluster.Sleep(ctx, l.at+a.AtS-now()) {
				return
			}
			if c.locked(func() { forgotten = l.forgotten }); forgotten {
				return // it would hit another's job
			}
			for !c.act(ctx, l, id, a) && a.What == letGo && cluster.Sleep(ctx, 1) {
				continue // a job that stays held would be its owner's loss
			}
		}
	}()
}

// act does one thing for an owner. What Slurm refuses, since the job is further than its owner thought, is no harm.
func (c *campaign) act(ctx context.Context, l *life, id string, a act) bool {
	args := strings.Fields(strings.ReplaceAll(a.Command, "JOB", id))
	at := now()
	if _, err := c.s.RunAs(ctx, l.User, args[0], args[1:]...); err != nil {
		return false
	}
	c.locked(func() {
		switch a.What {
		case cancel:
			l.gone = at
		case requeue:
			l.requeued = now()
		case hold:
			l.held = append(l.held, interval{at, math.Inf(1)})
		case letGo:
			if n := len(l.held); n > 0 {
				l.held[n-1].To = now()
			}
		case timeLimit:
			l.limitS = 60 * float64(tight(l.SoloS))
		}
	})
	return true
}

// torment causes faults until the context ends, about one in everyS seconds, and mends all.
func (c *campaign) torment(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(c.o.seed, 2)) //nolint:gosec // repeatable, not secret
	var kinds []*cluster.Fault                // each as often as it weighs
	for i := range cluster.Faults {
		f := &cluster.Faults[i]
		// A fault that lasts for much of a short campaign would leave little of it.
		if (f.Slurm || !c.o.plain) && f.Least <= c.o.length.Seconds()/10 {
			kinds = append(kinds, slices.Repeat([]*cluster.Fault{f}, f.Weight)...)
		}
	}
	var mend sync.WaitGroup
	for cluster.Sleep(ctx, rnd.ExpFloat64()*c.o.everyS) {
		f, node := kinds[rnd.IntN(len(kinds))], rnd.IntN(len(c.nodeGPUs))
		s := f.Least + (f.Most-f.Least)*rnd.Float64()
		mend.Go(func() {
			from := now()
			name, err := f.Play(ctx, c.s, node, s)
			if errors.Is(err, cluster.ErrNothing) {
				return
			}
			if err != nil && ctx.Err() == nil {
				fmt.Fprintf(os.Stderr, "soak: %s: %v\n", f.Name, err)
			}
			c.locked(func() { c.faults = append(c.faults, fault{interval{from, now()}, f, name}) })
		})
	}
	mend.Wait()
}

// left are the jobs that have not ended.
func (c *campaign) left() (out []*job) {
	for _, j := range c.jobs {
		switch {
		case over(j.State) || c.lost(j):
		case j.ID == "" && (!math.IsInf(j.gone, 1) || j.submitted != "" && c.unsaved(j)):
		default:
			out = append(out, j)
		}
	}
	return out
}

// waiting counts the jobs that have not started.
func (c *campaign) waiting() (n int) {
	for _, j := range c.left() {
		if j.State == "" || j.State == "PENDING" {
			n++
		}
	}
	return n
}

// aftermath is how long after a fault Slurm still feels it, s.
const aftermath = 10

// forgot is the death of slurmctld in this time that lost what it had not written down yet,
// the last seconds' jobs and ends; "" = there was none.
func (c *campaign) forgot(from, to float64) string {
	for _, f := range c.faults {
		if f.Plain && f.node == "" && f.To > from && f.From < to {
			return f.Name
		}
	}
	return ""
}

// unsaved reports whether slurmctld was killed just after it had taken a job.
func (c *campaign) unsaved(j *job) bool { return c.forgot(j.at, j.at+aftermath) != "" }

// lost reports whether a killed slurmctld forgot a job: it gave its number to another one, or looks don't show it any
// more.
func (c *campaign) lost(j *job) bool {
	unseen := c.lastLook - j.seenAt
	return j.forgotten || j.ID != "" && !over(j.State) && unseen > 2*lookEvery+lookTimeout.Seconds() &&
		c.forgot(j.seenAt-aftermath, j.seenAt+aftermath) != ""
}

// hurry does for jobs that would wait for long what their owner or an operator would. A requeued job waits for two
// minutes before it may start again; owners in a hurry say so. A job is started twice, which fails, if a killed
// slurmctld had forgotten its start; Slurm then holds the job, as it does if it found no nodes for it, and an operator
// releases it.
func (c *campaign) hurry(ctx context.Context, left []*job) {
	for _, j := range left {
		if j.Reason == "BeginTime" {
			_, _ = c.s.Run(ctx, "scontrol", "update", "JobId="+j.ID, "StartTime=now")
		} else if strings.HasPrefix(j.Reason, "launch_failed") || j.Reason == badConstraints {
			_, _ = c.s.Run(ctx, "scontrol", "release", j.ID)
		}
	}
}

// now is this moment in Unix seconds.
func now() float64 { return float64(time.Now().UnixMilli()) / 1000 }

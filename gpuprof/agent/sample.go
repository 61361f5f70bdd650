package agent

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// due returns when the next reading is due; false = no job runs.
func (a *Agent) due() (next time.Time, ok bool) {
	for i := range a.sharers() {
		g := a.gpus[i]
		if !ok || g.pace.due.Before(next) {
			next = g.pace.due
			ok = true
		}
	}
	return next, ok
}

// sharers lists the running jobs by GPU.
func (a *Agent) sharers() map[int][]int64 {
	on := map[int][]int64{}
	for r, t := range a.jobs {
		if !t.runs() {
			continue
		}
		for _, g := range t.gpus {
			if !slices.Contains(on[g], r.ID) {
				on[g] = append(on[g], r.ID)
			}
		}
	}
	return on
}

// pass reads each GPU that is due and hands the reading to its jobs. All GPUs of a job are read together.
func (a *Agent) pass() {
	on := a.sharers()
	now := a.Now()
	if len(on) == 0 {
		a.showIdle(now)
		return
	}
	due := map[int]bool{}
	for i := range on {
		if !a.gpus[i].pace.due.After(now) {
			due[i] = true
		}
	}
	for more := true; more; {
		more = false
		for _, t := range a.jobs {
			if !t.runs() || !slices.ContainsFunc(t.gpus, func(i int) bool { return due[i] }) {
				continue
			}
			for _, i := range t.gpus {
				more = more || !due[i]
				due[i] = true
			}
		}
	}
	if len(due) == 0 {
		return
	}
	for i := range due {
		a.read(a.gpus[i], on[i], now)
	}
	for r, t := range a.jobs {
		if t.runs() && slices.ContainsFunc(t.gpus, func(i int) bool { return due[i] }) {
			a.take(r.ID, t, on, now)
		}
	}
	a.showUses()
	a.showIdle(now)
	a.passed(a.Now())
}

// read samples a GPU and schedules the next reading.
func (a *Agent) read(g *gpu, jobs []int64, now time.Time) {
	var err error
	if g.missing && g.index >= 0 {
		err = fmt.Errorf("%w: %s is no MIG instance any more", nvml.ErrLost, g.dev.UUID)
	} else if g.missing {
		lost := slices.DeleteFunc(slices.Clone(a.Devices), func(d nvml.Device) bool { return d.Lost == "" })
		err = fmt.Errorf("gpu %d of Slurm's is none that NVML has; it has lost %d", -1-g.index, len(lost))
	} else if g.dev.Lost != "" {
		err = fmt.Errorf("gpu %d: %w: %s", g.index, nvml.ErrLost, g.dev.Lost)
	} else if g.last, err = a.observe(g, jobs, now); err != nil {
		err = fmt.Errorf("gpu %d: %w", g.index, err)
	}
	g.fresh = err == nil
	if lost := errors.Is(err, nvml.ErrLost); lost || g.fresh {
		a.tellLost(g, lost)
	}
	for _, name := range g.last.lied.Names() {
		a.Metrics.lies.WithLabelValues(name).Inc()
	}
	if err != nil {
		a.Metrics.samples.WithLabelValues("error").Inc()
		a.broken[g.index] = err
		g.pace.next(now, nil)
		return
	}
	a.Metrics.samples.WithLabelValues("ok").Inc()
	delete(a.broken, g.index)
	var parts []float64
	for i := range gpuprof.Recorded {
		if gpuprof.Recorded[i].Resource != nil {
			parts = append(parts, g.last.reading.Value[i]/g.most(gpuprof.Fig(i)))
		}
	}
	g.pace.next(now, parts)
}

// hostEvery is the number of periods between two readings of a job's control group.
const hostEvery = 5

// host notes what a job has used of its node so far, because the control group disappears with the job.
func (a *Agent) host(t *tracked, now time.Time) {
	if now.Sub(t.asked) < hostEvery*a.Period {
		return
	}
	t.asked = now
	cpuS, mib := prolog.HostUse(cmp.Or(a.Groups, "/sys/fs/cgroup"), t.job)
	if cpuS >= 0 {
		t.HostAt, t.HostCPU = now, cpuS
	}
	t.HostMiB = max(t.HostMiB, mib)
}

// take adds the readings of a job's GPUs to its record.
func (a *Agent) take(id int64, t *tracked, on map[int][]int64, now time.Time) {
	a.host(t, now)
	sum := gpuprof.Reading{Known: gpuprof.AllFigures()} // known for every one of its GPUs
	var failed error
	busy := false
	t.apart = false
	for _, i := range t.gpus {
		g := a.gpus[i]
		if !g.fresh {
			failed = a.broken[i]
			continue
		}
		r := g.last.reading
		c := g.last.clients[id]
		t.Processes = max(t.Processes, c.n)
		t.ProcessMiB = max(t.ProcessMiB, c.mostMiB)
		t.apart = t.apart || c.withoutMPS && (t.job.Sharer() || len(on[i]) > 1)
		t.WithoutMPS = t.WithoutMPS || t.apart
		if len(on[i]) > 1 {
			own := g.last.own[id] // zeros if the job has no process there
			for f := range g.last.told.Each {
				r.Set(f, own.Value[f])
			}
			t.Mixed |= r.Known &^ g.last.told
		}
		busy = busy || works(&r, len(on[i]) > 1 && g.last.told.Has(gpuprof.FigCore))
		sum.Known &= r.Known
		for f := range gpuprof.Recorded {
			part := r.Value[f]
			if !gpuprof.Recorded[f].Sum {
				part /= float64(len(t.gpus))
			}
			sum.Value[f] += part
		}
	}
	from := t.resume
	t.resume = now
	if now.Sub(t.seen) > stale*a.Period {
		t.idle = time.Time{} // idleness in between is unknown
	}
	if failed != nil || sum.Empty() {
		t.held = gpuprof.Reading{}
		t.Failed++
		if t.Failed == 1 {
			a.Log.Warn("sample", "job", t.job.JobID, "err", failed)
		}
		return
	}
	t.Samples++
	t.held = sum
	t.seen = now
	switch {
	case busy:
		t.idle = time.Time{}
	case t.idle.IsZero():
		t.idle = now
	}
	a.hold(t, from, now)
}

// hold adds the last reading of a job's GPUs for the time from from to to, unless that is so long that the agent missed
// readings, the node was suspended or its clock was set. The job's file has wall-clock times only, so all times are.
func (a *Agent) hold(t *tracked, from, to time.Time) {
	begin := from.Sub(t.job.Start)
	end := to.Sub(t.job.Start)
	if end-begin > stale*a.Period {
		return
	}
	t.Tally.Add(begin.Seconds(), end.Seconds(), t.held)
}

// Parameters of the pace.
const (
	// changed is the difference between two readings, as a fraction of the card, that counts as a change.
	changed = 0.05
	// slower is the factor by which the step grows while nothing changes.
	slower = 1.25
	// purse is the number of readings in advance of one per period that a GPU may have.
	purse = 60
)

// pace schedules the readings of a GPU. The step is a tenth of the period (0.1 s) after a job came and after a reading
// that differs from the last one. Each reading without a change makes it a quarter longer, up to ten periods (10 s).
// Each reading costs one token and each period earns one, at most 60: a GPU with flickering use is read once a period
// on average.
type pace struct {
	period time.Duration
	step   time.Duration
	due    time.Time
	at     time.Time // last reading
	left   float64   // tokens
	last   []float64 // nil = none yet
}

func (p *pace) least() time.Duration { return p.period / 10 }
func (p *pace) most() time.Duration  { return 10 * p.period }

// hurry makes the next reading due at once, and the following ones fast, because a job came or went.
func (p *pace) hurry(now time.Time) { p.step, p.due = p.least(), now }

// next schedules the reading after one at now; v are the resources as fractions of the card, nil if it failed.
func (p *pace) next(now time.Time, v []float64) {
	if p.at.IsZero() {
		p.left = purse
	} else {
		p.left = min(purse, p.left+max(0, now.Sub(p.at).Seconds())/p.period.Seconds())
	}
	p.at = now
	p.left = max(0, p.left-1)
	switch {
	case v == nil:
		p.step = max(p.step, p.period) // a failing GPU is not read faster than once a period
	case p.last != nil && differ(p.last, v):
		p.step = p.least()
		p.last = v
	default:
		p.step, p.last = time.Duration(slower*float64(p.step)), v
	}
	p.step = max(p.least(), min(p.most(), p.step))
	if p.left < 1 {
		p.step = max(p.step, p.period)
	}
	p.due = now.Add(p.step)
}

func differ(a, b []float64) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) > changed {
			return true
		}
	}
	return false
}

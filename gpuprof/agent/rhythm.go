package agent

import (
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// A burst is a short stretch of fast reading in which a job's iterations show: 2 s
// at 10 ms with a period of 1 s. A job that is alone on one GPU has at most three,
// 5 s, 60 s and 600 s after its start; none more once one has shown a clear rhythm.
const (
	burstReadings = 200
	burstStep     = 100 // a period is so many of its steps
	burstSure     = 0.7 // strength of a rhythm that is clear
)

// burstAt is when a job's bursts begin, in periods.
var burstAt = [...]int{5, 60, 600}

// burst collects the readings of one.
type burst struct {
	t             *tracked
	due           time.Time
	left          int
	gpu, mem, pow []gpuprof.Moment
}

// maybeBurst begins a burst if one is due on a GPU.
func (a *Agent) maybeBurst(g *gpu, now time.Time) {
	t := a.alone(g)
	if g.missing || g.dev.Lost != "" || g.burst != nil || t == nil || t.Bursts >= len(burstAt) ||
		t.Rhythm.Strength >= burstSure {
		return
	}
	if now.Sub(t.job.Start) < time.Duration(burstAt[t.Bursts])*a.Period {
		return
	}
	t.Bursts++
	// A job that the agent took up late hasn't all of them at once.
	for t.Bursts < len(burstAt) && now.Sub(t.job.Start) >= time.Duration(burstAt[t.Bursts])*a.Period {
		t.Bursts++
	}
	g.burst = &burst{t: t, due: now, left: burstReadings}
}

// alone returns the one job on a GPU if it has no other and never had a neighbour:
// the rhythm of a mixture belongs to no job.
func (a *Agent) alone(g *gpu) *tracked {
	var one *tracked
	for _, t := range a.jobs {
		if !t.runs() || !t.has(g.index) {
			continue
		}
		if one != nil || len(t.gpus) != 1 || len(t.Neighbours) > 0 {
			return nil
		}
		one = t
	}
	return one
}

// burstRead takes one reading of a burst. None of them enters the record's series.
func (a *Agent) burstRead(g *gpu, now time.Time) {
	b := g.burst
	if a.alone(g) != b.t {
		g.burst = nil
		return
	}
	at := now.Sub(b.t.job.Start).Seconds()
	add := func(ms *[]gpuprof.Moment, v float64) { *ms = append(*ms, gpuprof.Moment{T: at, V: v}) }
	// Without PCIe: reading it takes the driver longer than a step.
	if use, mem, err := g.card.Utilisation(); err == nil {
		add(&b.gpu, use)
		add(&b.mem, mem)
	}
	if w, err := g.card.Read(nvml.Power); err == nil {
		add(&b.pow, w)
	}
	step := a.Period / burstStep
	b.due = b.due.Add(step)
	if b.due.Before(now) {
		b.due = now.Add(step / 2) // the driver is slower than that
	}
	b.left--
	if long := time.Duration(2*burstReadings) * step; b.left > 0 &&
		now.Sub(b.t.job.Start) < long+time.Duration(burstAt[b.t.Bursts-1])*a.Period {
		return
	}
	g.burst = nil
	a.conclude(g, b)
}

// conclude looks for a rhythm in a burst, and in what the driver remembers by
// itself: it is slower, and longer.
func (a *Agent) conclude(g *gpu, b *burst) {
	power := 0.0
	for _, m := range b.pow {
		power += m.V / float64(len(b.pow))
	}
	const noise = 0.03 // of the card
	try := func(ms []gpuprof.Moment, noise float64) {
		if r, ok := gpuprof.FindRhythm(ms, noise); ok && r.Strength > b.t.Rhythm.Strength {
			b.t.Rhythm = r
		}
	}
	try(b.gpu, noise)
	try(b.mem, noise)
	try(b.pow, noise*power)
	points, err := g.card.Samples(b.t.job.Start)
	if err != nil {
		return
	}
	var ms []gpuprof.Moment
	for _, p := range points {
		if fraction(p.GPU) {
			ms = append(ms, gpuprof.Moment{T: p.At.Sub(b.t.job.Start).Seconds(), V: p.GPU})
		}
	}
	try(ms, noise)
}

package agent

import (
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// A burst is a short stretch of fast reading in which a job's iterations show. A job that is alone on one GPU has at
// most these, and none more once one has shown a clear rhythm.
var bursts = [...]struct {
	at, step float64 // after the job's start, and between two readings, in periods of the agent
}{{5, 0.01}, {60, 0.1}, {600, 0.01}, {700, 0.1}}

const (
	burstReadings = 200
	burstSure     = 0.7 // strength of a rhythm that is clear
)

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
	if g.missing || g.dev.Lost != "" || g.burst != nil || t == nil || t.Rhythm.Strength >= burstSure {
		return
	}
	// A job that the agent took up late hasn't all of them at once.
	had, ran := t.Bursts, now.Sub(t.job.Start).Seconds()/a.Period.Seconds()
	for t.Bursts < len(bursts) && ran >= bursts[t.Bursts].at {
		t.Bursts++
	}
	if t.Bursts > had {
		g.burst = &burst{t: t, due: now, left: burstReadings}
	}
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
	if w, err := g.card.Power(); err == nil {
		add(&b.pow, w)
	}
	kind := bursts[b.t.Bursts-1]
	step := time.Duration(kind.step * float64(a.Period))
	b.due = b.due.Add(step)
	if b.due.Before(now) {
		b.due = now.Add(step / 2) // the driver is slower than that
	}
	if b.left--; b.left > 0 && at < (kind.at+2*burstReadings*kind.step)*a.Period.Seconds() {
		return
	}
	g.burst = nil
	b.conclude()
}

// conclude looks for a rhythm in a burst.
func (b *burst) conclude() {
	power := 0.0
	for _, m := range b.pow {
		power += m.V / float64(len(b.pow))
	}
	const noise = 0.03 // of the card
	for _, figure := range []struct {
		read  []gpuprof.Moment
		noise float64
	}{{b.gpu, noise}, {b.mem, noise}, {b.pow, noise * power}} {
		if r, ok := gpuprof.FindRhythm(figure.read, figure.noise); ok && r.Strength > b.t.Rhythm.Strength {
			b.t.Rhythm = r
		}
	}
}

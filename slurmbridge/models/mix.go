package models

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

const (
	// sliceGPUs is how many GPUs a slice has at most. Values don't depend on the
	// number of GPUs, so that what is learned on four holds on hundreds.
	sliceGPUs = 4
	// mostRuns bounds the runs of a mix, the latest ones: more add nothing.
	mostRuns = 4000
	// heldPart is the part of the runs, the last ones, that training doesn't see.
	heldPart = 0.25
	// blockJobs is how many jobs that came one after the other stay together when job
	// sets are drawn: what comes together, such as one user's series of runs, does so in
	// the drawn sets as well.
	blockJobs = 10
	// episodeJobs is how many jobs a training episode has for each GPU, and mostEpisode how many at most.
	episodeJobs, mostEpisode = 15, 60
)

// Rules are the settings that decisions keep to.
type Rules struct {
	// Objective is what networks learn and are judged by; "" = the turnaround.
	Objective policy.Objective
	Window    int
	Guard     rlcore.Guard // its Predictor is filled in
}

// Mix is what a site ran in some days, ready to be played, with what was believed of its
// applications and of slowdowns at their end.
type Mix struct {
	Training // without Seed, Rounds, BestRound and Version
	rules    Rules
	Slices   []Slice
	beliefs  *interference.Model // is only cloned: its users run at the same time
	truth    *history.Truth
}

// Slice is some GPUs of one kind with the jobs that really ran on them, in the order of their
// arrival: a small cluster as busy as the site is.
type Slice struct {
	Card  rlcore.GPUSpec
	GPUs  int
	Jobs  []sim.Arrival // SubmitS is since Mix.From
	Split int           // the first job that training doesn't see
}

// drawn is a run that a mix may be drawn from.
type drawn struct {
	*history.Run
	card  rlcore.GPUSpec
	soloS float64 // how long it would have taken alone, s
}

// Draw makes a mix of the runs that ended in [from, to) and have a record; card is what is known of
// a run's GPU, and past are the outcomes up to then. It leaves the runs as they are.
func Draw(from, to time.Time, runs []history.Run, card func(*history.Run) rlcore.GPUSpec, past []history.Outcome, rules Rules) *Mix {
	rules.Objective = cmp.Or(rules.Objective, policy.Turnaround)
	m := &Mix{Training: Training{From: from.UTC(), To: to.UTC(), LeftOut: map[string]int{}}, rules: rules, beliefs: interference.New(&contention.MPS)}
	history.Teach(m.beliefs, past, map[string]history.Outcome{})
	m.truth = history.NewTruth(m.beliefs.Clone(), interference.New(&contention.MPS))
	var kept []*drawn
	for i := range runs {
		if runs[i].ID == 0 {
			continue
		}
		r := &drawn{Run: &runs[i], card: card(&runs[i])}
		r.soloS, _ = r.Solo()
		if why := r.leftOut(); why != "" {
			m.LeftOut[why]++
			continue
		}
		kept = append(kept, r)
	}
	slices.SortStableFunc(kept, func(a, b *drawn) int {
		return cmp.Or(a.arrive().Compare(b.arrive()), a.Start.Compare(b.Start), cmp.Compare(a.Ref, b.Ref))
	})
	if n := len(kept) - mostRuns; n > 0 {
		m.LeftOut[fmt.Sprintf("the latest %d are enough", mostRuns)] = n
		kept = kept[n:]
	}
	m.Split = m.To
	if n := int((1 - heldPart) * float64(len(kept))); n < len(kept) {
		m.Split = kept[n].arrive().UTC()
	}
	m.slice(kept)
	return m
}

func (r *drawn) leftOut() string {
	switch {
	case len(r.GPUs) > 1:
		return "more than one GPU"
	case len(r.GPUs) == 0:
		return "its GPU is not known"
	case !r.End.After(r.Start):
		return "it ran for no time"
	case !(r.card.MemMiB > 0):
		return "its card is not known"
	case r.Profile != nil && r.Profile.Validate() != nil:
		return "its profile can't be"
	case r.Profile != nil && r.Profile.Peak().MemMiB > r.card.MemMiB:
		return "more memory than its card has"
	case r.soloS <= 0:
		return "it failed while sharing: how long it takes alone is not known"
	}
	return ""
}

// arrive is when the job arrived, its start where no poll showed it waiting.
func (r *drawn) arrive() time.Time {
	if r.Ready.IsZero() || r.Ready.After(r.Start) {
		return r.Start
	}
	return r.Ready
}

// slice deals the runs out to slices: GPUs of one card, in the order of their names.
func (m *Mix) slice(kept []*drawn) {
	type gpu struct {
		card rlcore.GPUSpec
		node string
		at   int
	}
	id := func(r *drawn) gpu { return gpu{r.card, r.Node, r.GPUs[0]} }
	var gpus []gpu
	for _, r := range kept {
		gpus = append(gpus, id(r))
	}
	slices.SortFunc(gpus, func(a, b gpu) int {
		return cmp.Or(cmp.Compare(a.card.Model, b.card.Model), cmp.Compare(a.card.MemMiB, b.card.MemMiB),
			cmp.Compare(fmt.Sprint(a.card), fmt.Sprint(b.card)), cmp.Compare(a.node, b.node), cmp.Compare(a.at, b.at))
	})
	place := map[gpu]int{}
	for _, g := range slices.Compact(gpus) {
		n := len(m.Slices)
		if n == 0 || m.Slices[n-1].GPUs == sliceGPUs || m.Slices[n-1].Card != g.card {
			m.Slices, n = append(m.Slices, Slice{Card: g.card}), n+1
		}
		place[g] = n - 1
		m.Slices[n-1].GPUs++
	}
	type length struct {
		profile *rlcore.Profile
		soloS   float64
	}
	alone := map[length]*rlcore.Profile{}
	for _, r := range kept {
		key := length{r.Profile, r.soloS}
		if alone[key] == nil {
			alone[key] = m.truth.Alone(r.Profile, r.soloS)
		}
		j := sim.Arrival{Job: r.Job(), Truth: alone[key]}
		j.SubmitS = r.arrive().Sub(m.From).Seconds()
		if r.Ready.IsZero() {
			m.Guessed++
		}
		s := &m.Slices[place[id(r)]]
		if s.Jobs = append(s.Jobs, j); r.arrive().Before(m.Split) {
			s.Split++
			m.Runs++
		} else {
			m.Held++
		}
	}
}

// tools makes a guard and a model for a decider.
func (m *Mix) tools() dqn.Tools {
	beliefs, g := m.beliefs.Clone(), rlcore.Guard{}
	m.rules.Guard.Rules(&g)
	g.Predictor = beliefs
	return dqn.Tools{Guard: &g, Predictor: beliefs}
}

// blocks is how many blocks so many jobs make. The last one may be longer.
func blocks(jobs int) int { return jobs / blockJobs }

// draw puts n of a slice's jobs from … to together, block by block with replacement, as they came: the
// time between two jobs of a block is as it was, and so is that from a block's last to the job after
// it. at once: all come at the start.
func (m *Mix) draw(s *Slice, from, to, n int, atOnce bool, r *rand.Rand) sim.Config {
	cfg := sim.Config{Truth: m.truth.On(&s.Card), GPUs: slices.Repeat([]rlcore.GPUSpec{s.Card}, s.GPUs)}
	jobs := s.Jobs[from:to]
	k := max(1, blocks(len(jobs)))
	gap := 0.0
	if len(jobs) > 1 {
		gap = (jobs[len(jobs)-1].SubmitS - jobs[0].SubmitS) / float64(len(jobs)-1)
	}
	at := 0.0
	for len(cfg.Jobs) < n && len(jobs) > 0 {
		b := r.IntN(k)
		end := (b + 1) * blockJobs
		if b == k-1 {
			end = len(jobs)
		}
		for i := b * blockJobs; i < end && len(cfg.Jobs) < n; i++ {
			j := jobs[i]
			j.ID, j.SubmitS = fmt.Sprint(len(cfg.Jobs)), at
			cfg.Jobs = append(cfg.Jobs, j)
			switch {
			case atOnce:
			case i+1 < len(jobs):
				at += jobs[i+1].SubmitS - jobs[i].SubmitS
			default:
				at += gap
			}
		}
	}
	return cfg
}

// scenario draws training episodes from what came before the split: a slice by how
// many jobs it had, the jobs as they came or, every second time, all at once. What to
// do when the site is busy is learned from the latter, where it was not.
func (m *Mix) scenario(r *rand.Rand) (sim.Config, error) {
	pick, i := r.IntN(m.Runs), 0
	for pick >= m.Slices[i].Split {
		pick -= m.Slices[i].Split
		i++
	}
	s := &m.Slices[i]
	return m.draw(s, 0, s.Split, min(max(20, episodeJobs*s.GPUs), mostEpisode), r.IntN(2) == 0, r), nil
}

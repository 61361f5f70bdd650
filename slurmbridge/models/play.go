package models

import (
	"fmt"
	"math/rand/v2"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/sim"
)

// world is a mix made ready to be played.
type world struct {
	mix    *Mix
	slices [][]sim.Arrival
	truth  *history.Truth
	// drawSets is how many job sets are drawn to judge by.
	drawSets int
}

// model makes a new interference model that has learned what the site's has.
func (m *Mix) model() *interference.Model {
	out := interference.New(&contention.MPS)
	history.Teach(out, m.Outcomes)
	return out
}

func newWorld(m *Mix) *world {
	w := &world{mix: m, drawSets: judgeSets, truth: history.NewTruth(m.model(), interference.New(&contention.MPS))}
	type length struct {
		profile *rlcore.Profile
		soloS   float64
	}
	own := map[length]*rlcore.Profile{}
	for i := range m.Slices {
		jobs := make([]sim.Arrival, len(m.Slices[i].Jobs))
		for k, j := range m.Slices[i].Jobs {
			key := length{j.Profile, j.SoloS}
			if own[key] == nil {
				own[key] = w.truth.Alone(j.Profile, j.SoloS)
			}
			jobs[k] = sim.Arrival{Job: j.Job, Truth: own[key]}
		}
		w.slices = append(w.slices, jobs)
	}
	return w
}

// tools makes a guard and a model for a decider.
func (w *world) tools() dqn.Tools {
	m := w.mix.model()
	return dqn.Tools{Guard: w.mix.Rules.guard(m), Predictor: m}
}

// blockJobs is how many jobs that came one after the other stay together when job
// sets are drawn: what comes together, such as one user's series of runs, does so in
// the drawn sets as well.
const blockJobs = 10

// blocks is how many blocks the jobs from … to make. The last one may be longer.
func blocks(jobs int) int { return jobs / blockJobs }

// draw puts n jobs of a slice's jobs from … to together, block by block with
// replacement, as they came: the time between two jobs of a block is as it was, and
// so is that from a block's last to the job after it. at once: all come at the start.
func (w *world) draw(slice, from, to, n int, atOnce bool, r *rand.Rand) sim.Config {
	s := &w.mix.Slices[slice]
	cfg := sim.Config{Truth: w.truth.On(&s.Card)}
	for range s.GPUs {
		cfg.GPUs = append(cfg.GPUs, s.Card)
	}
	jobs := w.slices[slice][from:to]
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

// episodeJobs is how many jobs a training episode has, for each GPU, and at most.
const episodeJobs, mostEpisode = 15, 60

// scenario draws training episodes from what came before the split: a slice by how
// many jobs it had, the jobs as they came or, every second time, all at once. What to
// do when the site is busy is learned from the latter, where it was not.
func (w *world) scenario() dqn.Scenario {
	total := 0
	for i := range w.mix.Slices {
		total += w.mix.Slices[i].Split
	}
	return func(r *rand.Rand) (sim.Config, error) {
		if total == 0 {
			return sim.Config{}, ErrTooFew
		}
		pick, slice := r.IntN(total), 0
		for pick >= w.mix.Slices[slice].Split {
			pick -= w.mix.Slices[slice].Split
			slice++
		}
		s := &w.mix.Slices[slice]
		return w.draw(slice, 0, s.Split, min(max(20, episodeJobs*s.GPUs), mostEpisode), r.IntN(2) == 0, r), nil
	}
}

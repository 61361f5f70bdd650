package models

import (
	"fmt"
	"math/rand/v2"
	"sync"

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
	base   map[*rlcore.Profile]*rlcore.Profile // an application's profile by a job's own
	slices [][]sim.Arrival
	truth  *believed
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
	w := &world{mix: m, base: map[*rlcore.Profile]*rlcore.Profile{}, drawSets: judgeSets}
	type length struct {
		profile int
		soloS   float64
	}
	own := map[length]*rlcore.Profile{}
	for i := range m.Slices {
		jobs := make([]sim.Arrival, len(m.Slices[i].Jobs))
		for k := range jobs {
			j := &m.Slices[i].Jobs[k]
			jobs[k] = sim.Arrival{Job: rlcore.Job{
				User: j.User, NoShare: j.NoShare, MaxSlowdown: j.MaxSlowdown, Array: j.Array, ArrayOnly: j.ArrayOnly, SubmitS: j.ArriveS,
			}}
			key := length{j.Profile, j.SoloS}
			if own[key] == nil {
				own[key] = w.truthOf(j)
			}
			jobs[k].Truth = own[key]
			if j.Profile >= 0 {
				jobs[k].Profile = m.Profiles[j.Profile]
			}
		}
		w.slices = append(w.slices, jobs)
	}
	w.truth = &believed{base: w.base, learned: m.model(), blank: interference.New(&contention.MPS)}
	return w
}

// truthOf is what a job really does alone: its application's shape over the time
// that this run took.
func (w *world) truthOf(j *Job) *rlcore.Profile {
	if j.Profile < 0 {
		return &rlcore.Profile{DurationS: j.SoloS, PeriodS: j.SoloS, Series: []rlcore.Use{{}}}
	}
	p := w.mix.Profiles[j.Profile].Stretched(j.SoloS)
	w.base[p] = w.mix.Profiles[j.Profile]
	return p
}

// tools makes a guard and a model for one who decides.
func (w *world) tools() dqn.Tools {
	m := w.mix.model()
	return dqn.Tools{Guard: w.mix.Rules.guard(m), Predictor: m}
}

// believed is how sharers slow each other: as the contention law has it at each
// instant, times what the site's co-runs have taught. Several simulations may ask it
// at once.
type believed struct {
	base           map[*rlcore.Profile]*rlcore.Profile
	learned, blank rlcore.Predictor

	mu      sync.Mutex
	members []*rlcore.Profile
	a, b    []rlcore.Prediction
}

// corrected is what the model adds to the part of a slowdown above 1 before it
// multiplies by what it learned; see rlcore/LEARNING.md.
const corrected = 0.1

// of makes the truth for GPUs of one card.
func (b *believed) of(card *rlcore.GPUSpec) sim.Truth { return &onCard{b, card} }

type onCard struct {
	*believed
	card *rlcore.GPUSpec
}

// Slowdowns implements sim.Truth.
func (t *onCard) Slowdowns(dst []float64, p []*rlcore.Profile, d []contention.Demand) []float64 {
	dst = contention.MPS.Slowdowns(dst, d)
	if len(p) < 2 {
		return dst
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members, t.a, t.b = t.members[:0], t.a[:0], t.b[:0]
	for _, x := range p {
		base := t.base[x]
		if base == nil {
			base = x
		}
		t.members = append(t.members, base)
		t.a, t.b = append(t.a, rlcore.Prediction{}), append(t.b, rlcore.Prediction{})
	}
	t.learned.Predict(t.a, t.card, t.members)
	t.blank.Predict(t.b, t.card, t.members)
	for i := range dst {
		by := (t.a[i].Slowdown - 1 + corrected) / (t.b[i].Slowdown - 1 + corrected)
		if by > 0 {
			dst[i] = max(1, 1-corrected+by*(dst[i]-1+corrected))
		}
	}
	return dst
}

// blockJobs is how many jobs that came one after the other stay together when job
// sets are drawn: what comes together, such as somebody's series of runs, does so in
// the drawn sets as well.
const blockJobs = 10

// blocks is how many blocks the jobs from … to make. The last one may be longer.
func blocks(jobs int) int { return jobs / blockJobs }

// draw puts n jobs of a slice's jobs from … to together, block by block with
// replacement, as they came: the time between two jobs of a block is as it was, and
// so is that from a block's last to the job after it. at once: all come at the start.
func (w *world) draw(slice, from, to, n int, atOnce bool, r *rand.Rand) sim.Config {
	s := &w.mix.Slices[slice]
	cfg := sim.Config{Truth: w.truth.of(&s.Card)}
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

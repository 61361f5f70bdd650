package history

import (
	"math"
	"sync"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

// Truth is how jobs take on the simulator when a site's own runs are replayed: each has its application's
// shape over the time that its run takes alone, and sharers slow each other as the model believes that has
// learned from the site. Several simulations may ask at once.
type Truth struct {
	learned rlcore.Predictor
	// untaught is the same model before it learned, nil = slowdowns are taken as learned predicts them for
	// whole runs. Otherwise the contention law gives them for each instant, and the two models' ratio what
	// the site's co-runs have taught.
	untaught rlcore.Predictor
	base     map[*rlcore.Profile]*rlcore.Profile // the application's profile by a job's own

	mu              sync.Mutex
	members         []*rlcore.Profile
	taught, without []rlcore.Prediction
}

// NewTruth makes the truth by a model that has learned; see Truth for untaught.
func NewTruth(learned, untaught rlcore.Predictor) *Truth {
	return &Truth{learned: learned, untaught: untaught, base: map[*rlcore.Profile]*rlcore.Profile{}}
}

// Alone is what a job does alone, given its application's profile (nil = it isn't known) and its time. It
// must not be called while a simulation runs.
func (t *Truth) Alone(app *rlcore.Profile, seconds float64) *rlcore.Profile {
	if app == nil {
		return &rlcore.Profile{DurationS: seconds, PeriodS: seconds, Series: []rlcore.Use{{}}}
	}
	own := *app.Stretched(seconds)
	t.base[&own] = app
	return &own
}

// On is the truth for GPUs of one kind.
func (t *Truth) On(card *rlcore.GPUSpec) *CardTruth { return &CardTruth{t, card} }

// CardTruth implements sim.Truth.
type CardTruth struct {
	*Truth
	card *rlcore.GPUSpec
}

// Slowdowns implements sim.Truth.
func (t *CardTruth) Slowdowns(dst []float64, p []*rlcore.Profile, d []contention.Demand) []float64 {
	law := &contention.MPS
	if t.card != nil {
		law = contention.Of(t.card.Sharing)
	}
	dst = law.Slowdowns(dst, d)
	if t.untaught == nil {
		for i := range dst {
			dst[i] = 1
		}
	}
	if len(p) < 2 {
		return dst
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.members, t.taught, t.without = t.members[:0], t.taught[:0], t.without[:0]
	for _, own := range p {
		app := t.base[own]
		if app == nil {
			app = own
		}
		t.members = append(t.members, app)
		t.taught, t.without = append(t.taught, rlcore.Prediction{}), append(t.without, rlcore.Prediction{})
	}
	t.learned.Predict(t.taught, t.card, t.members)
	if t.untaught == nil {
		for i := range dst {
			if slow := t.taught[i].Slowdown; slow >= 1 && !math.IsInf(slow, 1) {
				dst[i] = slow
			}
		}
		return dst
	}
	t.untaught.Predict(t.without, t.card, t.members)
	for i := range dst {
		by := (t.taught[i].Slowdown - 1 + interference.Floor) / (t.without[i].Slowdown - 1 + interference.Floor)
		if by > 0 {
			dst[i] = max(1, 1-interference.Floor+by*(dst[i]-1+interference.Floor))
		}
	}
	return dst
}

package models

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
	"github.com/slurmbridge/slurmbridge/rlcore/encoder"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// small is a round that takes a second: few rounds of training, from a network that
// doesn't share.
func small(t testing.TB) *Round {
	t.Helper()
	return &Round{
		Mix: Draw(day0, day0.AddDate(0, 0, 14), site(800, 2, 35, 1), cardOf, nil, rules), Seed: 5, Rounds: 3, Sets: 10, Base: spoil(t, builtIn(t)), Version: "test",
	}
}

func text(t testing.TB, c *dqn.Checkpoint) []byte {
	t.Helper()
	out := must.Get(json.Marshal(c))(t)
	return out
}

// The same mix, seed and beginning give the same candidate to the last byte, on one core
// as on two; another seed gives another.
func TestRoundRepeats(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	var first []byte
	var verdict Verdict
	for i, cores := range []int{1, 2, 1} {
		r := small(t)
		if i == 2 {
			r.Seed++
		}
		before := runtime.GOMAXPROCS(cores)
		f, err := r.Run(t.Context())
		runtime.GOMAXPROCS(before)
		if err != nil {
			t.Fatal(err)
		}
		if f.network == nil || f.Candidate == nil {
			t.Fatalf("nothing was learned from a network that doesn't share: %+v", f.Trained)
		}
		switch got := text(t, f.network); {
		case i == 0:
			first, verdict = got, *f.Candidate
			if !f.Candidate.Better || f.Previous != nil || f.Trained.Runs != 600 || f.Trained.Held != 200 || f.Trained.Seed != 5 || f.Trained.BestRound < 1 {
				t.Errorf("%s: %+v", f.Candidate.Why(), f)
			}
		case i == 1 && (!bytes.Equal(got, first) || *f.Candidate != verdict):
			t.Errorf("another network, or verdict: %+v, %+v", *f.Candidate, verdict)
		case i == 2 && bytes.Equal(got, first):
			t.Error("another seed, and the same network")
		}
	}
}

// A model that was promoted by mistake goes, and the candidate is trained from the one
// before it.
func TestRoundRollsBack(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	r := small(t)
	r.Previous = builtIn(t)
	f, err := r.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if f.Previous == nil || !f.Previous.Better {
		t.Fatalf("the previous network doesn't return: %+v", f.Previous)
	}
	if f.Change != Returned && f.Change != Replaced {
		t.Errorf("%+v", f)
	}
	if f.Candidate != nil && f.Candidate.Other.TurnaroundS != f.Previous.Own.TurnaroundS {
		t.Errorf("the candidate is held against %v s, the previous one has %v s", f.Candidate.Other.TurnaroundS, f.Previous.Own.TurnaroundS)
	}
	// The other way round it stays.
	r = small(t)
	r.Base, r.Previous, r.Rounds = nil, spoil(t, builtIn(t)), 1
	if f, err = r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if f.Previous == nil || f.Previous.Better || f.Previous.Gain >= 0 {
		t.Errorf("a worse one comes back: %+v", f.Previous)
	}
}

func TestRoundRefuses(t *testing.T) {
	few := Draw(day0, day0.AddDate(0, 0, 14), site(60, 2, 45, 1), cardOf, nil, rules)
	spread := Draw(day0, day0.AddDate(0, 0, 14), site(300, 240, 45, 1), cardOf, nil, rules) // one or two on each GPU
	for name, m := range map[string]*Mix{"few": few, "spread": spread, "none": Draw(day0, day0.AddDate(0, 0, 14), nil, cardOf, nil, rules)} {
		if _, err := (&Round{Mix: m}).Run(t.Context()); !errors.Is(err, ErrTooFew) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err := small(t).Run(ctx); !errors.Is(err, context.Canceled) || f != nil {
		t.Errorf("%+v, %v", f, err)
	}
}

// day0 is when the sites of the tests begin.
var day0 = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

var rules = Rules{Window: 5, Guard: rlcore.Guard{Grace: 100}}

// titanXp is the GPU of a record.
func titanXp() []gpuprof.GPU {
	return []gpuprof.GPU{{Model: rlcore.TitanXp.Model, MemMiB: rlcore.TitanXp.MemMiB}}
}

// cardOf is what is known of a run's GPU.
func cardOf(r *history.Run) rlcore.GPUSpec {
	if len(r.Devices) == 0 {
		return rlcore.GPUSpec{}
	}
	card := rlcore.TitanXp
	card.MemMiB = r.Devices[0].MemMiB
	return card
}

// site makes n runs on the GPUs of a site, one every gap seconds on average, of the
// thesis's applications. Their starts say nothing.
func site(n, gpus int, gap float64, seed uint64) []history.Run {
	r := rand.New(rand.NewPCG(seed, 1))
	profiles := map[string]*rlcore.Profile{}
	names := apps.Names()
	for _, a := range names {
		profiles[a], _ = apps.ByName(a)
	}
	at := day0
	var out []history.Run
	for i := range n {
		p := profiles[names[r.IntN(len(names))]]
		start := at.Add(time.Minute)
		out = append(out, history.Run{
			ID: int64(i + 1), Ref: fmt.Sprint(i + 1), User: "ann", Ready: at, Start: start,
			End:  start.Add(time.Duration(p.DurationS * (0.8 + 0.4*r.Float64()) * float64(time.Second))),
			Node: fmt.Sprintf("n%d", i%gpus/2), GPUs: []int{i % gpus % 2}, Devices: titanXp(), Profile: p,
		})
		at = at.Add(time.Duration(gap * r.ExpFloat64() * float64(time.Second)))
	}
	return out
}

// aloneIsBest makes a network value a combination the less the more jobs it starts.
func aloneIsBest(net dqn.Network) {
	theta := net.Params()[1].Theta
	clear(theta)
	const in = encoder.ContextLen + encoder.ComboLen
	// The number of layer units follows from the number of parameters.
	h := 1
	for in*h+h+h*h+h+h+1 < len(theta) {
		h++
	}
	theta[encoder.ContextLen+1] = 1 // jobs started, to the first unit
	theta[in*h+h] = 1
	theta[in*h+h+h*h+h] = -100
}

// demandsOf is what profiles ask for at their start.
func demandsOf(p ...*rlcore.Profile) []contention.Demand {
	var out []contention.Demand
	for _, x := range p {
		u := x.Mean()
		out = append(out, contention.Demand{GPU: u.GPU, Core: u.Core, StepS: x.StepS})
	}
	return out
}

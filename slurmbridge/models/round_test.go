package models

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore/dqn"
)

// small is a round that takes a second: few rounds of training, from a network that
// doesn't share.
func small(t testing.TB) *Round {
	t.Helper()
	return &Round{
		Mix: Draw(day0, day0.AddDate(0, 0, 14), site(1000, 2, 35, 1), cardOf, nil, rules), Seed: 5, Rounds: 5, Sets: 20, Base: spoil(t, builtIn(t)), Version: "test",
	}
}

func text(t testing.TB, c *dqn.Checkpoint) []byte {
	t.Helper()
	out, err := encode(c)
	if err != nil {
		t.Fatal(err)
	}
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
		if f.Candidate == nil || f.Verdict == nil {
			t.Fatalf("nothing was learned from a network that doesn't share: %+v", f.Trained)
		}
		switch got := text(t, f.Candidate); {
		case i == 0:
			first, verdict = got, *f.Verdict
			if !f.Verdict.Better || f.Previous != nil || f.Trained.Runs != 750 || f.Trained.Held != 250 || f.Trained.Seed != 5 || f.Trained.BestRound < 1 {
				t.Errorf("%s: %+v", f.Verdict.Why(), f)
			}
		case i == 1 && (!bytes.Equal(got, first) || *f.Verdict != verdict):
			t.Errorf("another network, or verdict: %+v, %+v", *f.Verdict, verdict)
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
	if got := f.Result(day0); got.Change != Returned && got.Change != Replaced {
		t.Errorf("%+v", got)
	}
	if f.Verdict != nil && f.Verdict.Other.TurnaroundS != f.Previous.Own.TurnaroundS {
		t.Errorf("the candidate is held against %v s, the previous one has %v s", f.Verdict.Other.TurnaroundS, f.Previous.Own.TurnaroundS)
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

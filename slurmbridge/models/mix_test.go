package models

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// Whatever ran, each run is in the mix once or counted as left out; slices are in
// order, and learn from what came before the split.
func TestDraw(t *testing.T) {
	known := site(11, 1, 60, 3)
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 80).Draw(t, "n")
		ran := make([]history.Run, n)
		for i := range ran {
			start := day0.Add(time.Duration(rapid.IntRange(0, 1e6).Draw(t, "start")) * time.Second)
			r := history.Run{
				ID: int64(i + 1), Ref: rapid.SampledFrom([]string{"1", "2_3", "4"}).Draw(t, "ref"), User: "ann", Start: start,
				End:  start.Add(time.Duration(rapid.IntRange(-5, 5000).Draw(t, "took")) * time.Second),
				Node: rapid.SampledFrom([]string{"n1", "n2", "n3"}).Draw(t, "node"), GPUs: []int{rapid.IntRange(0, 3).Draw(t, "gpu")}, Devices: titanXp(),
			}
			switch rapid.IntRange(0, 9).Draw(t, "kind") {
			case 0:
				r.GPUs = nil
			case 1:
				r.GPUs = []int{0, 1}
			case 2:
				r.Devices = nil
			case 3:
				r.Devices[0].MemMiB = 100
				r.Profile = known[rapid.IntRange(0, 10).Draw(t, "app")].Profile
			case 4:
				r.Outcome = &history.Outcome{With: []string{"9"}, Suspect: "memory"}
			case 5:
				r.Outcome = &history.Outcome{With: []string{"9"}, Predicted: 1.5}
			default:
				r.Profile = known[rapid.IntRange(0, 10).Draw(t, "app")].Profile
			}
			if rapid.Bool().Draw(t, "seen") {
				r.Ready = start.Add(-time.Duration(rapid.IntRange(-100, 5000).Draw(t, "waited")) * time.Second)
			}
			ran[i] = r
		}
		m := Draw(day0, day0.AddDate(0, 0, 14), ran, cardOf, nil, rules)
		total := m.Runs + m.Held
		for _, k := range m.LeftOut {
			total += k
		}
		if total != n || m.Guessed > n {
			t.Fatalf("%d of %d runs, %v", total, n, m.LeftOut)
		}
		for i := range m.Slices {
			s := &m.Slices[i]
			for k := range s.Jobs {
				at := m.From.Add(time.Duration(math.Round(s.Jobs[k].SubmitS * float64(time.Second))))
				if j := s.Jobs[k]; !(j.Truth.DurationS > 0) || k > 0 && j.SubmitS < s.Jobs[k-1].SubmitS || j.Profile != nil && j.Profile.Validate() != nil {
					t.Fatalf("slice %d, job %d can't be played: %+v", i, k, j)
				}
				if before := at.Before(m.Split); before != (k < s.Split) {
					t.Fatalf("slice %d, job %d arrives at %v, split at %d and %v", i, k, at, s.Split, m.Split)
				}
			}
		}
	})
}

// A run that only polls showed is none to learn from: nothing tells what it ran on.
func TestRunsWithoutARecordAreNotDrawn(t *testing.T) {
	ran := site(20, 1, 60, 1)
	ran[3].ID = 0
	m := Draw(day0, day0.AddDate(0, 0, 14), ran, cardOf, nil, rules)
	if m.Runs+m.Held != 19 || len(m.LeftOut) != 0 {
		t.Errorf("%d runs, left out %v", m.Runs+m.Held, m.LeftOut)
	}
}

// The latest runs count.
func TestDrawBounds(t *testing.T) {
	ran := site(mostRuns+100, 4, 10, 1)
	to := day0.AddDate(0, 0, 14)
	m := Draw(day0, to, ran, cardOf, nil, rules)
	if m.Runs != mostRuns*3/4 || m.Held != mostRuns/4 || m.LeftOut["the latest 4000 are enough"] != 100 {
		t.Errorf("%d and %d, %v", m.Runs, m.Held, m.LeftOut)
	}
	if len(m.Slices) != 1 || m.Slices[0].GPUs != 4 {
		t.Errorf("%d slices", len(m.Slices))
	}
	// What is known of their order doesn't matter.
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(ran), func(i, k int) { ran[i], ran[k] = ran[k], ran[i] })
	if again := Draw(day0, to, ran, cardOf, nil, rules); !reflect.DeepEqual(m.Training, again.Training) || !reflect.DeepEqual(m.Slices, again.Slices) {
		t.Error("in another order it is another mix")
	}
}

// What co-runs have taught is what happens in a replay.
func TestBelieved(t *testing.T) {
	ran := site(40, 1, 60, 1)
	names := map[string]bool{}
	for i := range ran {
		names[ran[i].Profile.App] = true
	}
	var past []history.Outcome
	for v := range names {
		for a := range names {
			for range 3 {
				past = append(past, history.Outcome{App: v, End: day0, Lesson: &interference.Lesson{
					Card: rlcore.TitanXp.Model, Victim: v, Others: []string{a}, Slowdown: 3, Off: 1,
				}})
			}
		}
	}
	pace := func(past []history.Outcome) float64 {
		m := Draw(day0, day0.AddDate(0, 0, 14), ran, cardOf, past, rules)
		a, b := m.Slices[0].Jobs[0].Truth, m.Slices[0].Jobs[1].Truth
		d := m.truth.On(&rlcore.TitanXp)
		demands := demandsOf(a, b)
		s := d.Slowdowns(nil, []*rlcore.Profile{a, b}, demands)
		if alone := d.Slowdowns(nil, []*rlcore.Profile{a}, demands[:1]); alone[0] > 1+1e-9 {
			t.Errorf("alone it takes %v times as long", alone[0])
		}
		return s[0]
	}
	if law, learned := pace(nil), pace(past); learned < law+0.1 {
		t.Errorf("%v by the law alone, %v with what was learned", law, learned)
	}
}

package usage

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

// hoursOf are the jobs of a period, with what each held, h.
func hoursOf(t testing.TB, s Store, from, to float64) map[string]float64 {
	t.Helper()
	r, err := s.Report(t.Context(), Query{From: at(from), To: at(to), By: Job}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	if r != nil {
		for _, l := range r.Lines {
			out[l.Name] = l.Held
		}
	}
	return out
}

// Footprints saved in any order: each run is kept once, as it was saved last.
func TestFootprintsAreKeptOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := open(t)
		want := map[string]float64{}
		for range rapid.IntRange(1, 12).Draw(rt, "saves") {
			var list []history.Footprint
			for range rapid.IntRange(1, 4).Draw(rt, "runs") {
				ref := fmt.Sprint(rapid.IntRange(1, 6).Draw(rt, "job"))
				if slices.ContainsFunc(list, func(f history.Footprint) bool { return f.Ref == ref }) {
					continue
				}
				// The same run, whose start and end are known better and better.
				from, to := rapid.Float64Range(0, 0.3).Draw(rt, "start"), rapid.Float64Range(1.5, 2.4).Draw(rt, "end")
				list, want[ref] = append(list, run(ref, "ann", from, to)), to-from
			}
			if err := s.Save(t.Context(), at(1.5), at(2.5), list); err != nil {
				rt.Fatal(err)
			}
		}
		if got := hoursOf(t, s, 0, 4); !maps.EqualFunc(got, want, func(a, b float64) bool { return math.Abs(a-b) < 1e-5 }) {
			rt.Fatalf("%v, want %v", got, want)
		}
	})
}

func TestFootprintsOfAPeriod(t *testing.T) {
	s := open(t)
	// A run of five days, one on each day.
	list := []history.Footprint{run("long", "ann", 1, 121)}
	for d := range 5 {
		list = append(list, run(fmt.Sprint(d), "ann", 24*float64(d)+2, 24*float64(d)+3))
	}
	for i := range list {
		if err := s.Save(t.Context(), list[i].End, list[i].End.Add(time.Hour), list[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	names := func(from, to float64) []string { return slices.Sorted(maps.Keys(hoursOf(t, s, from, to))) }
	if got := names(48, 72); !slices.Equal(got, []string{"2", "long"}) {
		t.Errorf("of a day: %v", got)
	}
	if got := names(122, 200); got != nil {
		t.Errorf("of later: %v", got)
	}
	if first, err := s.First(t.Context()); err != nil || !first.Equal(at(3)) {
		t.Errorf("the first ended at %v, %v", first, err)
	}
	if err := s.SetSettled(t.Context(), at(1000), 1); err != nil {
		t.Fatal(err)
	}
	if err := s.Forget(t.Context(), at(50)); err != nil {
		t.Fatal(err)
	}
	if got := names(0, 200); !slices.Equal(got, []string{"2", "3", "4", "long"}) {
		t.Errorf("after two days were forgotten: %v", got)
	}
	if r, err := s.Report(t.Context(), Query{From: at(-400), To: at(400), By: User}, nil); err != nil || r.Total.Runs != 4 || r.Total.Held != 123 {
		t.Errorf("their week's sum: %+v, %v", r, err)
	}
}

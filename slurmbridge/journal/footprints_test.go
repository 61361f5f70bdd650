package journal

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/slurmbridge/database"
	"github.com/slurmbridge/slurmbridge/slurmbridge/history"
)

func footprintsIn(t interface {
	Fatal(...any)
}, j *Journal, from, to time.Time,
) []history.Footprint {
	var out []history.Footprint
	if err := j.Footprints(context.Background(), from, to, func(l []history.Footprint) error {
		out = append(out, l...)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(out, func(a, b history.Footprint) int { return cmp.Or(cmp.Compare(a.Ref, b.Ref), a.Start.Compare(b.Start)) })
	return out
}

func openJournal(t *testing.T) *Journal {
	t.Helper()
	db, err := database.Open(t.Context(), filepath.Join(t.TempDir(), "s.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return New(db)
}

// Whatever is saved in which order, each run is kept once, as it was saved last.
func TestFootprintsAreKeptOnce(t *testing.T) {
	zero := time.Date(2026, 3, 1, 22, 0, 0, 0, time.UTC)
	at := func(min int) time.Time { return zero.Add(time.Duration(min) * time.Minute).Local() }
	rapid.Check(t, func(rt *rapid.T) {
		j := openJournal(t)
		want := map[string]history.Footprint{}
		for i := range rapid.IntRange(1, 12).Draw(rt, "saves") {
			var list []history.Footprint
			for range rapid.IntRange(1, 4).Draw(rt, "runs") {
				ref := fmt.Sprint(rapid.IntRange(1, 6).Draw(rt, "job"))
				if slices.ContainsFunc(list, func(f history.Footprint) bool { return f.Ref == ref }) {
					continue
				}
				// The same run, around midnight, whose start and end are known better and better.
				f := history.Footprint{
					Ref: ref, User: "ann", Run: int64(i), Start: at(rapid.IntRange(0, 20).Draw(rt, "start")), End: at(rapid.IntRange(90, 145).Draw(rt, "end")),
					GPUs: 1, Use: &history.Use{KnownS: float64(i), IdleS: 1}, Harm: []history.Harm{history.HarmLate},
				}
				list, want[ref] = append(list, f), f
			}
			if err := j.SaveFootprints(t.Context(), at(90), at(146), list); err != nil {
				rt.Fatal(err)
			}
		}
		got := footprintsIn(rt, j, at(0), at(200))
		if len(got) != len(want) {
			rt.Fatalf("%d runs, want %d", len(got), len(want))
		}
		for _, f := range got {
			w := want[f.Ref]
			if !f.Start.Equal(w.Start) || !f.End.Equal(w.End) {
				rt.Fatalf("%+v, want %+v", f, w)
			}
			f.Start, f.End = w.Start, w.End
			if !reflect.DeepEqual(f, w) {
				rt.Fatalf("%+v, want %+v", f, w)
			}
		}
	})
}

func TestFootprintsOfAPeriod(t *testing.T) {
	j := openJournal(t)
	zero := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	at := func(h int) time.Time { return zero.Add(time.Duration(h) * time.Hour) }
	// A run of five days, one on each day.
	list := []history.Footprint{{Ref: "long", Start: at(1), End: at(121)}}
	for d := range 5 {
		list = append(list, history.Footprint{Ref: fmt.Sprint(d), Start: at(24*d + 2), End: at(24*d + 3)})
	}
	for i := range list {
		if err := j.SaveFootprints(t.Context(), list[i].End, list[i].End.Add(time.Hour), list[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	names := func(from, to int) (out []string) {
		for _, f := range footprintsIn(t, j, at(from), at(to)) {
			out = append(out, f.Ref)
		}
		return out
	}
	if got := names(48, 72); !slices.Equal(got, []string{"2", "long"}) {
		t.Errorf("of a day: %v", got)
	}
	if got := names(122, 200); got != nil {
		t.Errorf("of later: %v", got)
	}
	if first, err := j.FirstFootprint(t.Context()); err != nil || !first.Equal(at(1)) {
		t.Errorf("the first is of %v, %v", first, err)
	}
	if err := j.ForgetFootprints(t.Context(), at(50)); err != nil {
		t.Fatal(err)
	}
	if got := names(0, 200); !slices.Equal(got, []string{"2", "3", "4", "long"}) {
		t.Errorf("after two days were forgotten: %v", got)
	}
	if _, err := j.db.Exec(`UPDATE bridge_footprints SET body = x'00'`); err != nil {
		t.Fatal(err)
	}
	if err := j.Footprints(t.Context(), at(0), at(200), func([]history.Footprint) error { return nil }); err == nil {
		t.Error("damaged days are read")
	}
}

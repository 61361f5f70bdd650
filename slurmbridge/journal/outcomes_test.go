package journal

import (
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/slurmbridge/history"

	"github.com/slurmbridge/slurmbridge/rlcore/interference"
)

func TestOutcomes(t *testing.T) {
	j := open(t, filepath.Join(t.TempDir(), "j.db"))
	ctx := t.Context()
	if last, err := j.LastOutcome(ctx); err != nil || last != 0 {
		t.Errorf("of nothing: %d, %v", last, err)
	}
	at := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for i := range 3 {
		o := history.Outcome{
			Run: int64(i + 5), Ref: "7", User: "ann", App: "a", Start: at, End: at.Add(time.Duration(i) * time.Hour),
			With: []string{"8"}, Lesson: &interference.Lesson{Card: "c", Victim: "a", Others: []string{"b"}, Slowdown: 1.5, Off: 0.25},
		}
		if err := j.SaveOutcome(ctx, &o); err != nil {
			t.Fatal(err)
		}
		o.Again = true
		if err := j.SaveOutcome(ctx, &o); err != nil { // in place of the former
			t.Fatal(err)
		}
		all, err := j.Outcomes(ctx, at, at.Add(24*time.Hour))
		if err != nil || len(all) != i+1 || !reflect.DeepEqual(all[i], o) {
			t.Fatalf("%+v, %v", all, err)
		}
	}
	if last, err := j.LastOutcome(ctx); err != nil || last != 7 {
		t.Errorf("the last is %d, %v", last, err)
	}
	if all, err := j.Outcomes(ctx, at.Add(time.Hour), at.Add(24*time.Hour)); err != nil || len(all) != 2 {
		t.Errorf("of the last hours: %+v, %v", all, err)
	}
	if s, err := j.Story(ctx, "7"); err != nil || len(s.Outcomes) != 3 {
		t.Errorf("its story: %+v, %v", s, err)
	}
	if err := j.Forget(ctx, at.Add(90*time.Minute)); err != nil {
		t.Fatal(err)
	}
	if all, err := j.Outcomes(ctx, at, at.Add(24*time.Hour)); err != nil || len(all) != 1 {
		t.Errorf("after the old were forgotten: %+v, %v", all, err)
	}
}

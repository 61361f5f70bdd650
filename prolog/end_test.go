package prolog

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// A job's file is in one folder at every moment: the agent, which looks at any time,
// takes what has ended from one of them, and must not find it in the other afterwards.
func TestFileIsInOneFolder(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	d := Dir(t.TempDir())
	for id := int64(1); id <= 300; id++ {
		j := &Job{JobID: id, GPUs: []int{0}, Start: time.Now()}
		must(t, d.Begin(j))
		done := make(chan error)
		go func() { _, err := d.End(id, time.Now(), "0:0"); done <- err }()
		there := func(path string) bool { _, err := os.Stat(path); return err == nil }
		for !there(d.ended(j)) {
			if !there(d.running(id)) && !there(d.ended(j)) {
				t.Fatalf("job %d is nowhere", id)
			}
			runtime.Gosched()
		}
		if there(d.running(id)) {
			t.Fatalf("job %d runs after it has ended", id)
		}
		must(t, <-done)
	}
}

// An epilog that died between its two steps has told the end: the next hook on that GPU
// moves the file, and the end stays.
func TestEpilogDiesOnTheWay(t *testing.T) {
	now := time.Now().Round(time.Second)
	h := &Hook{Dir: Dir(t.TempDir()), Now: func() time.Time { return now }}
	j := &Job{JobID: 7, GPUs: []int{0}, Percent: 30, Start: now.Add(-time.Minute)}
	must(t, h.Dir.Begin(j))
	j.End, j.Exit = now.Add(-3*time.Second), "1:0"
	must(t, write(h.Dir.running(7), j))
	if left, err := h.closeStale([]*Job{j}); len(left) != 0 || err == nil {
		t.Errorf("%v is left: %v", left, err)
	}
	ended, err := List(h.Dir.Ended())
	if err != nil || len(ended) != 1 || !ended[0].End.Equal(j.End) || ended[0].Exit != "1:0" {
		t.Fatalf("%+v, %v", ended, err)
	}
	// Moved meanwhile: nothing is left to say.
	if left, err := h.closeStale([]*Job{j}); len(left) != 0 || err != nil {
		t.Errorf("%v is left: %v", left, err)
	}
	// The same run's prolog can't come again, but a requeued one's does.
	must(t, write(h.Dir.running(7), j))
	must(t, h.Dir.Begin(&Job{JobID: 7, Restart: 1, GPUs: []int{0}, Start: now}))
	if ended, err = List(h.Dir.Ended()); err != nil || len(ended) != 1 || !ended[0].End.Equal(j.End) {
		t.Errorf("%+v, %v", ended, err)
	}
	if running, err := List(h.Dir.Jobs()); err != nil || len(running) != 1 || running[0].Restart != 1 || !running[0].End.IsZero() {
		t.Errorf("%+v, %v", running, err)
	}
}

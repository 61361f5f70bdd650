package agent

import (
	"log/slog"
	"math"
	"os"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// restart puts a new agent in the place of the old one, which ended in good order,
// on the same cards.
func (b *bench) restart() {
	b.t.Helper()
	b.keepState()
	b.crash()
}

// crash does so after a kill.
func (b *bench) crash() {
	b.t.Helper()
	old := b.Agent
	b.Agent = &Agent{Dir: old.Dir, Lib: old.Lib, Node: old.Node, Keep: old.Keep, Log: slog.New(slog.DiscardHandler), Now: old.Now, Proc: old.Proc}
	if err := b.Start(); err != nil {
		b.t.Fatal(err)
	}
	for i, g := range b.gpus {
		g.card = old.gpus[i].card
	}
	b.scan()
}

// A job goes on being recorded where the agent is started again while it runs, and
// the record says what was missed; neighbours that have long gone aren't forgotten.
func TestRestartWithJobsRunning(t *testing.T) {
	b := newBench(t)
	b.gpus[0].card = b.steady()
	start := b.now
	b.begin(7, 0, 0)
	b.scan()
	b.until(start.Add(50 * time.Second))
	b.begin(8, 0, 0)
	b.scan()
	b.until(start.Add(100 * time.Second))
	b.end(8)
	b.closed(8)
	b.until(start.Add(200 * time.Second))
	b.restart()
	b.now = start.Add(201 * time.Second)
	b.pass(false)
	b.until(start.Add(300 * time.Second))
	b.end(7)
	r := b.closed(7)
	if r.Cut || r.MissedS > 12 || r.Samples < 20 || math.Abs(r.Mean.GPU-0.5) > 1e-6 {
		t.Errorf("missed %v s, %d samples, mean %v", r.MissedS, r.Samples, r.Mean)
	}
	if len(r.Neighbours) != 1 || r.Neighbours[0].JobID != 8 || r.Neighbours[0].To.Sub(r.Neighbours[0].From) != 50*time.Second {
		t.Errorf("neighbours %+v", r.Neighbours)
	}
	if p, err := gpuprof.ProfileOf("a", r); err != nil {
		t.Error(p, err)
	}
	if len(b.before) != 0 {
		t.Errorf("%d jobs are still remembered", len(b.before))
	}
}

// After a kill the series goes back to what was written down last; a job that the
// agent never saw has a record of who and when.
func TestKilledAgent(t *testing.T) {
	b := newBench(t)
	b.gpus[0].card = b.steady()
	start := b.now
	b.begin(7, 0, 0)
	b.scan()
	b.until(start.Add(60 * time.Second))
	b.keepState()
	b.until(start.Add(100 * time.Second))
	b.begin(9, 0, 1)
	b.now = start.Add(110 * time.Second)
	b.end(9)
	b.crash()
	b.until(start.Add(200 * time.Second))
	b.end(7)
	if r := b.closed(7); r.Cut || r.MissedS < 49 || r.MissedS > 61 {
		t.Errorf("missed %v s", r.MissedS)
	} else if _, err := gpuprof.ProfileOf("a", r); err == nil {
		t.Error("a quarter of the run is missing, and it became a profile")
	}
	if r := b.closed(9); !r.Cut || r.Samples != 0 || r.MissedS != 10 || len(r.Unknown) == 0 {
		t.Errorf("%+v", r)
	}
}

// A state file that is damaged, or of something else, costs what was gathered and
// nothing else.
func TestDamagedState(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	b.scan()
	b.sample()
	b.keepState()
	good, err := os.ReadFile(b.statePath())
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(b.statePath()); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	for i := 0; i <= len(good); i += 41 {
		for _, body := range [][]byte{good[:i], flip(good, i)} {
			if err := os.WriteFile(b.statePath(), body, 0o600); err != nil {
				t.Fatal(err)
			}
			b.crash()
			if len(b.jobs) != 1 {
				t.Fatal("the job is lost")
			}
			j := *b.jobs[run{7, 0}].job
			j.End = b.now.Add(time.Hour)
			if err := b.record(b.jobs[run{7, 0}], &j).Validate(); err != nil {
				t.Fatal(i, err)
			}
		}
	}
}

func flip(b []byte, i int) []byte {
	out := append([]byte(nil), b...)
	if i < len(out) {
		out[i] ^= 0x55
	}
	return out
}

// A job that starts when another ends was never beside it.
func TestSuccessorsAreNoNeighbours(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	b.scan()
	b.now = b.now.Add(10 * time.Second)
	b.end(7)
	if err := b.Dir.Begin(&prolog.Job{JobID: 8, GPUs: []int{0}, Start: b.now}); err != nil {
		t.Fatal(err)
	}
	b.now = b.now.Add(10 * time.Second) // both are seen at once
	b.scan()
	b.end(8)
	if r := b.closed(7); !r.Solo() {
		t.Errorf("%+v", r.Neighbours)
	}
	if r := b.closed(8); !r.Solo() {
		t.Errorf("%+v", r.Neighbours)
	}
}

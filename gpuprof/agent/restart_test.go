package agent

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// restart puts a new agent in the place of the old one, which ended in good order,
// on the same cards.
func (b *bench) restart() {
	b.t.Helper()
	b.keepState()
	b.crash(io.Discard)
}

// crash does so after a kill; the new one logs there.
func (b *bench) crash(log io.Writer) {
	b.t.Helper()
	old := b.Agent
	b.Agent = &Agent{
		Dir: old.Dir, Devices: old.Devices, Node: old.Node, Keep: old.Keep,
		Log: slog.New(slog.NewTextHandler(log, nil)), Now: old.Now, Proc: old.Proc,
	}
	must.OK(b.t, b.Start())
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
	b.pass()
	b.until(start.Add(300 * time.Second))
	b.end(7)
	r := b.closed(7)
	if r.Cut || r.MissedS > 12 || r.Samples < 20 || math.Abs(r.Mean.GPU-0.5) > 1e-6 {
		t.Errorf("missed %v s, %d samples, mean %v", r.MissedS, r.Samples, r.Mean)
	}
	if len(r.Neighbours) != 1 || r.Neighbours[0].JobID != 8 ||
		r.Neighbours[0].To.Sub(r.Neighbours[0].From) != 50*time.Second {
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
	b.crash(io.Discard)
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
	good := must.Get(os.ReadFile(b.statePath()))(t)
	if info, err := os.Stat(b.statePath()); err != nil || info.Mode().Perm() != 0o600 {
		t.Error(info.Mode(), err)
	}
	for i := 0; i <= len(good); i += 41 {
		for _, body := range [][]byte{good[:i], flip(good, i)} {
			must.OK(t, os.WriteFile(b.statePath(), body, 0o600))
			b.crash(io.Discard)
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
	must.OK(t, b.Dir.Begin(&prolog.Job{JobID: 8, GPUs: []int{0}, UUIDs: uuids(t, b.Dir, 0), Start: b.now}))
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

// A job whose file goes away without an epilog ended when it was last seen; a record
// that can't be kept then is kept later, and one that nobody saw is told of.
func TestFileThatVanishes(t *testing.T) {
	b := newBench(t)
	var log bytes.Buffer
	b.Log = slog.New(slog.NewTextHandler(&log, nil))
	b.gpus[0].card = b.steady()
	start := b.now
	b.begin(7, 0, 0)
	b.begin(8, 0, 0)
	b.scan()
	b.until(start.Add(95 * time.Second))
	seen := b.jobs[run{7, 0}].resume
	remove := func(id int) {
		t.Helper()
		must.OK(t, os.Remove(filepath.Join(b.Dir.Jobs(), strconv.Itoa(id)+".json")))
	}
	b.now = start.Add(100 * time.Second)
	b.begin(9, 0, 1)
	b.scan()
	remove(7)
	b.begin(10, 0, 0) // came after 7 was last seen
	b.kept.fail = true
	b.scan()
	if len(b.kept.recs) != 0 || b.jobs[run{7, 0}] == nil {
		t.Fatalf("%+v", b.kept.recs)
	}
	b.kept.fail = false
	b.now = start.Add(110 * time.Second)
	r := b.closed(7)
	if !r.NoEpilog || !r.End.Equal(seen) || seen.Sub(start) < 80*time.Second || r.Cut || r.MissedS > 0.1 ||
		r.Mean.GPU != 0.5 {
		t.Errorf("%+v", r)
	}
	if len(r.Neighbours) != 1 || r.Neighbours[0].JobID != 8 || r.Neighbours[0].To.After(seen) {
		t.Errorf("neighbours %+v", r.Neighbours)
	}
	remove(9)
	log.Reset()
	b.scan()
	if len(b.kept.recs) != 1 || !strings.Contains(log.String(), "no record") || !strings.Contains(log.String(), "job=9") {
		t.Errorf("%d records, %s", len(b.kept.recs), &log)
	}
	if b.jobs[run{8, 0}] == nil || len(b.jobs) != 2 {
		t.Errorf("%v", b.jobs)
	}
	// While no agent runs.
	b.keepState()
	remove(8)
	b.crash(&log)
	if len(b.jobs) != 1 || !strings.Contains(log.String(), "while no agent ran") ||
		!strings.Contains(log.String(), "job=8") || strings.Contains(log.String(), "job=10 ") {
		t.Errorf("%v, %s", b.jobs, &log)
	}
}

// rewrite changes a running job's file, as the hooks do.
func (b *bench) rewrite(id int64, change func(*prolog.Job)) {
	b.t.Helper()
	path := filepath.Join(b.Dir.Jobs(), fmt.Sprintf("%d.json", id))
	j := must.Get(prolog.ReadJob(path))(b.t)
	change(j)
	body := must.Get(json.Marshal(j))(b.t)
	must.OK(b.t, os.WriteFile(path, body, 0o600))
}

// What the hooks find of a job's MPS server while it runs is in its record.
func TestVictim(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	b.begin(8, 0, 0)
	b.scan()
	b.until(b.now.Add(5 * time.Second))
	fault := b.now
	b.rewrite(7, func(j *prolog.Job) { j.MPSFault = fault })
	b.until(b.now.Add(5 * time.Second))
	b.end(7)
	b.end(8)
	if r := b.closed(7); !r.MPSFault.Equal(fault) {
		t.Errorf("fault at %v, want %v", r.MPSFault, fault)
	}
	if r := b.closed(8); !r.MPSFault.IsZero() {
		t.Errorf("job 8 is no victim: %v", r.MPSFault)
	}
}

// While a job's end stands in its file and the file hasn't been moved yet, the agent
// waits; then there is one record, with that end.
func TestEndIsToldBeforeTheMove(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	b.scan()
	b.until(b.now.Add(5 * time.Second))
	end := b.now
	b.rewrite(7, func(j *prolog.Job) { j.End = end })
	b.scan()
	b.now = b.now.Add(time.Second)
	b.scan()
	if len(b.kept.recs) != 0 {
		t.Fatalf("a record before the file was moved: %+v", b.kept.recs)
	}
	b.end(7)
	r := b.closed(7)
	b.scan()
	if !r.End.Equal(end) || r.NoEpilog || len(b.kept.recs) != 1 || len(b.jobs) != 0 {
		t.Errorf("%d records, %d jobs, %+v", len(b.kept.recs), len(b.jobs), r)
	}
}

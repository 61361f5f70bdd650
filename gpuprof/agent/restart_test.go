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
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// restart puts a new agent in the place of the old one, which ended in good order, on the same cards.
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
		Log: slog.New(slog.NewTextHandler(log, nil)), Now: old.Now, Proc: old.Proc, Period: old.Period,
		Metrics: NewMetrics(prometheus.NewRegistry()),
	}
	must.OK(b.t, b.Start())
	for i, g := range b.gpus {
		g.card = old.gpus[i].card
	}
	b.scan()
}

// file is a running job's, as the hooks have written it.
func (b *bench) file(id int64) string { return filepath.Join(b.Dir.Jobs(), fmt.Sprintf("%d.json", id)) }

// rewrite changes a running job's file, as the hooks do.
func (b *bench) rewrite(id int64, change func(*prolog.JobFile)) {
	b.t.Helper()
	j := must.Get(prolog.ReadJob(b.file(id)))(b.t)
	change(j)
	must.OK(b.t, os.WriteFile(b.file(id), must.Get(json.Marshal(j))(b.t), 0o600))
}

// A job goes on being recorded where the agent is started again while it runs, and
// the record says what was missed; neighbours that have long gone aren't forgotten. A record that couldn't be kept is
// closed again by the next agent, with all that the one before it saw.
func TestRestartWithJobsRunning(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0)
	b.elapse(50 * time.Second)
	b.begin(8, 0)
	b.elapse(50 * time.Second)
	b.kept.fail = true
	b.end(8)
	b.scan()
	b.elapse(100 * time.Second)
	b.restart()
	b.kept.fail = false
	if r := b.closed(8); r.MissedS > 0 || r.Cut || r.DurationS() != 50 {
		t.Errorf("%+v", r)
	}
	b.now = b.now.Add(time.Second)
	b.pass()
	b.elapse(99 * time.Second)
	r := b.ended(7)
	if r.Cut || r.MissedS > 12 || r.Samples < 20 || math.Abs(r.Mean.GPU-0.5) > 1e-6 {
		t.Errorf("missed %v s, %d samples, mean %v", r.MissedS, r.Samples, r.Mean)
	}
	if len(r.Neighbours) != 1 || r.Neighbours[0].JobID != 8 ||
		r.Neighbours[0].To.Sub(r.Neighbours[0].From) != 50*time.Second {
		t.Errorf("neighbours %+v", r.Neighbours)
	}
	must.Get(gpuprof.ProfileOf("a", r))(t)
	must.Equal(t, b.before, nil, "still remembered")
}

// After a kill the series goes back to what was written down last; a job that the
// agent never saw has a record of who and when.
func TestKilledAgent(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0)
	b.elapse(60 * time.Second)
	b.keepState()
	b.elapse(40 * time.Second)
	b.prolog(prolog.JobFile{JobID: 9, GPUs: []int{1}})
	b.now = b.now.Add(10 * time.Second)
	b.end(9)
	b.crash(io.Discard)
	b.elapse(90 * time.Second)
	r := b.ended(7)
	if _, err := gpuprof.ProfileOf("a", r); err == nil || r.Cut || r.MissedS < 49 || r.MissedS > 61 {
		t.Errorf("missed %v s, cut %v; a profile: %v", r.MissedS, r.Cut, err)
	}
	if r := b.closed(9); !r.Cut || r.Samples != 0 || r.MissedS != 10 || len(r.Unknown) == 0 {
		t.Errorf("%+v", r)
	}
}

// A state file that is damaged, or of something else, costs what was gathered and nothing else.
func TestDamagedState(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0)
	b.sample()
	b.keepState()
	good := must.Get(os.ReadFile(b.statePath()))(t)
	must.Equal(t, must.Get(os.Stat(b.statePath()))(t).Mode().Perm(), 0o600)
	for i := 0; i < len(good); i += 41 {
		flipped := bytes.Clone(good)
		flipped[i] ^= 0x55
		for _, body := range [][]byte{good[:i], flipped} {
			must.OK(t, os.WriteFile(b.statePath(), body, 0o600))
			b.crash(io.Discard)
			must.Equal(t, len(b.jobs), 1)
			j := *b.jobs[run{7, 0}].job
			j.End = b.now.Add(time.Hour)
			must.OK(t, b.record(b.jobs[run{7, 0}], &j).Validate())
		}
	}
}

// A job that starts when another ends was never beside it.
func TestSuccessorsAreNoNeighbours(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0)
	b.now = b.now.Add(10 * time.Second)
	b.end(7)
	b.prolog(prolog.JobFile{JobID: 8, GPUs: []int{0}})
	b.now = b.now.Add(10 * time.Second) // both are seen at once
	must.Equal(t, b.closed(7).Neighbours, nil)
	must.Equal(t, b.ended(8).Neighbours, nil)
}

// A job whose file goes away without an epilog ended when it was last seen; a record
// that can't be kept then is kept later, and one that nobody saw is told of.
func TestFileThatVanishes(t *testing.T) {
	b := newBench(t)
	var log bytes.Buffer
	b.Log = slog.New(slog.NewTextHandler(&log, nil))
	start := b.now
	b.begin(7, 0)
	b.begin(8, 0)
	b.elapse(95 * time.Second)
	seen := b.jobs[run{7, 0}].resume
	b.now = start.Add(100 * time.Second)
	b.begin(9, 1)
	must.OK(t, os.Remove(b.file(7)))
	b.kept.fail = true
	b.begin(10, 0) // came after 7 was last seen
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
	must.OK(t, os.Remove(b.file(9)))
	log.Reset()
	b.scan()
	if len(b.kept.recs) != 1 || len(b.jobs) != 2 || !strings.Contains(log.String(), "no record") ||
		!strings.Contains(log.String(), "job=9") {
		t.Errorf("%d records, %v, %s", len(b.kept.recs), b.jobs, &log)
	}
	// While no agent runs.
	b.keepState()
	must.OK(t, os.Remove(b.file(8)))
	b.crash(&log)
	if len(b.jobs) != 1 || !strings.Contains(log.String(), "while no agent ran") ||
		!strings.Contains(log.String(), "job=8") || strings.Contains(log.String(), "job=10 ") {
		t.Errorf("%v, %s", b.jobs, &log)
	}
}

// A job that is requeued and starts again before its first run's record was kept
// has two runs, and each has a record of its own.
func TestRequeuedRunsAreKeptApart(t *testing.T) {
	b := newBench(t)
	sample := func() {
		b.now = b.now.Add(time.Second)
		b.sample()
	}
	b.begin(7, 0)
	sample()
	b.kept.fail = true
	b.end(7)
	b.prolog(prolog.JobFile{JobID: 7, Restart: 1, GPUs: []int{0}})
	b.scan()
	for range 3 {
		sample()
	}
	b.kept.fail = false
	b.scan()
	sample()
	b.ended(7)
	must.Equal(t, [2]int{len(b.kept.recs), len(b.jobs)}, [2]int{2, 0}, "records and jobs")
	for restart, samples := range []int{1, 4} {
		r := b.kept.recs[restart]
		if r.Restart != restart || r.Samples != samples || r.Cut || !r.Solo() {
			t.Errorf("run %d: %+v", restart, r)
		}
	}
}

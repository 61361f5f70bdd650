package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// cards is NVML of two GPUs that do as they are told.
type cards struct {
	mu   sync.Mutex
	err  error
	hang chan struct{} // not nil: a sample waits for it
	util float64
}

// two are its GPUs.
func two() []nvml.Device {
	return []nvml.Device{{UUID: "GPU-0", MemMiB: 12000}, {Minor: 1, Index: 1, UUID: "GPU-1", MemMiB: 12000}}
}

// card is GPU i.
func (c *cards) card(i int) *card {
	ask := func(v *float64) (float64, error) {
		c.mu.Lock()
		err, hang, v0 := c.err, c.hang, *v
		c.mu.Unlock()
		if hang != nil {
			<-hang
		}
		return v0, err
	}
	mem := 100 * float64(1+i)
	return &card{
		use:    func() (float64, float64, error) { v, err := ask(&c.util); return v, 0, err },
		memory: func() (float64, error) { return ask(&mem) },
		pcie:   is(0),
	}
}

func (c *cards) set(err error, hang chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err, c.hang = err, hang
}

// bench is an agent that a test drives pass by pass, with a clock of its own.
type bench struct {
	*Agent
	t     *testing.T
	cards *cards
	now   time.Time
	kept  kept
	reg   *prometheus.Registry

	untoldMemory bool // of processes, in two
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, cards: &cards{util: 0.5}, now: time.Unix(1e9, 0), reg: prometheus.NewPedanticRegistry()}
	b.Agent = &Agent{
		Dir: prolog.Dir(t.TempDir()), Devices: two(), Node: "n1", Keep: b.kept.keep, Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return b.now }, Metrics: NewMetrics(b.reg),
	}
	must.OK(t, b.Start())
	for i, g := range b.gpus {
		g.card = b.cards.card(i)
	}
	return b
}

func (b *bench) begin(id int64, restart int, gpus ...int) {
	b.t.Helper()
	must.OK(b.t, b.Dir.Begin(&prolog.Job{
		JobID: id, Restart: restart, UID: 1000, User: "ann", GPUs: gpus,
		UUIDs: uuids(b.t, b.Dir, gpus...), Percent: 50, Start: b.now,
	}))
}

// wants fails the test unless Health complains with these words; none = it must
// not complain.
func (b *bench) wants(words ...string) {
	b.t.Helper()
	err := b.Health()
	if (err != nil) != (len(words) > 0) {
		b.t.Fatalf("health: %v, want %q", err, words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			b.t.Errorf("health: %q doesn't say %q", err, w)
		}
	}
}

func TestHealth(t *testing.T) {
	b := newBench(t)
	b.wants("no look")
	b.scan()
	b.wants()
	b.now = b.now.Add(30 * time.Second)
	b.wants()
	b.now = b.now.Add(time.Second)
	b.wants("look at the job files", "31s ago")

	// With a job it is a sample that must be recent: ten periods, no more.
	b.begin(7, 0, 1)
	b.scan()
	b.wants()
	b.now = b.now.Add(10 * time.Second)
	b.wants()
	b.now = b.now.Add(time.Millisecond)
	b.scan() // the files alone say nothing of sampling
	b.wants("last sample", "10.001s ago")
	b.sample()
	b.wants()

	b.cards.set(nvml.ErrLost, nil)
	b.sample()
	b.wants("gpu 1", nvml.ErrLost.Error())
	b.cards.set(nil, nil)
	b.wants("gpu 1") // until it is seen to be well
	b.sample()
	b.wants()
}

// A GPU that failed is not called broken for ever when its job has gone: it is
// asked again, though there is nobody to sample it for.
func TestHealthAfterTheJob(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0, 0)
	b.scan()
	b.cards.set(nvml.ErrLost, nil)
	b.sample()
	end(t, b.Dir, 7)
	b.scan()
	b.wants("gpu 0")
	must.OK(t, b.retry())
	b.wants("gpu 0")
	b.cards.set(nil, nil)
	must.OK(t, b.retry())
	b.wants()
	// A job with a GPU that isn't there is wrong while it runs.
	b.begin(8, 0, 5)
	b.scan()
	b.sample()
	b.wants("gpu 5 of Slurm's")
	end(t, b.Dir, 8)
	b.scan()
	must.OK(t, b.retry())
	b.wants()
}

func TestHealthOfJobFiles(t *testing.T) {
	b := newBench(t)
	b.scan()
	b.wants()
	must.OK(t, b.Dir.Make())
	bad := filepath.Join(b.Dir.Jobs(), "9.json")
	must.OK(t, os.WriteFile(bad, []byte("{"), 0o600))
	b.scan()
	b.wants("9.json")
	must.OK(t, os.Remove(bad))
	b.scan()
	b.wants()
}

// The loop as it runs: a driver that hangs is found out, and is forgiven when it
// answers again.
func TestHungDriverIsNoticed(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	c, k := &cards{}, &kept{}
	dir := prolog.Dir(t.TempDir())
	a := &Agent{
		Dir: dir, Devices: two(), Node: "n1", Period: 20 * time.Millisecond, Keep: k.keep, Now: time.Now,
		Log: slog.New(slog.DiscardHandler),
	}
	must.OK(t, a.Start())
	for i, g := range a.gpus {
		g.card = c.card(i)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	eventually := func(what string, ok func(error) bool) {
		t.Helper()
		for range 30000 {
			if ok(a.Health()) {
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
		t.Fatalf("never %s: %v", what, a.Health())
	}
	well := func(err error) bool { return err == nil }
	eventually("well when idle", well)
	begin(t, dir, 3, 0)
	eventually("well with a job", well)
	hang := make(chan struct{})
	c.set(nil, hang)
	eventually("late", func(err error) bool { return err != nil && strings.Contains(err.Error(), "last sample was") })
	c.set(nil, nil)
	close(hang)
	eventually("well again", well)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// closed scans, and returns the record of a job.
func (b *bench) closed(id int64) *gpuprof.Record {
	b.t.Helper()
	b.scan()
	for _, r := range b.kept.recs {
		if r.JobID == id {
			if err := r.Validate(); err != nil {
				b.t.Error(err)
			}
			return r
		}
	}
	b.t.Fatalf("no record of job %d", id)
	return nil
}

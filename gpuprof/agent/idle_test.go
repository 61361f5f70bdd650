package agent

import (
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
)

// idleFor are the jobs that an agent tells of, and for how long they have done nothing.
func (b *bench) idleFor() map[int64]time.Duration {
	out := map[int64]time.Duration{}
	for _, j := range b.Idle() {
		out[j.JobID] = time.Duration(j.IdleS * float64(time.Second)).Round(time.Minute)
	}
	return out
}

func TestAJobThatDoesNothingIsTold(t *testing.T) {
	b := newBench(t)
	c, use := b.steady(), 0.5
	c.use = func() (float64, float64, error) { return use, 0, nil }
	b.gpus[0].card = c
	b.begin(1, 0, 0)
	b.scan()
	b.until(b.now.Add(time.Hour))
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("it computes: %v", got)
	}
	use = 0.009
	b.until(b.now.Add(4 * time.Minute))
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("that soon: %v", got)
	}
	b.until(b.now.Add(30 * time.Minute))
	if got := b.idleFor()[1]; got < 33*time.Minute || got > 34*time.Minute {
		t.Errorf("idle for 34 minutes: %v", got)
	}
	use = 0.02
	b.until(b.now.Add(2 * time.Minute))
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("it computes again: %v", got)
	}
	use = 0
	b.until(b.now.Add(time.Hour))
	b.end(1)
	b.closed(1)
	b.pass()
	if got := b.idleFor(); len(got) > 0 {
		t.Errorf("it has ended: %v", got)
	}
}

// Of sharers that processes tell apart one may be idle; of others none is while the GPU computes.
func TestASharerThatDoesNothing(t *testing.T) {
	for told, want := range map[bool]int{true: 1, false: 0} {
		b := newBench(t)
		b.gpus[0].dev.MPS.OwnAddresses = true
		pids := map[int]int64{1: 1, 2: 2}
		if !told {
			pids[3] = -1
		}
		b.proc(pids)
		c := b.steady()
		c.procs = func() (out []nvml.Process, err error) {
			for pid := range pids {
				out = append(out, nvml.Process{PID: pid, MemMiB: 100})
			}
			return out, nil
		}
		c.uses = func(time.Time) ([]nvml.ProcessUse, error) {
			return []nvml.ProcessUse{{PID: 1, At: b.now, SM: 0.4}, {PID: 2, At: b.now, SM: 0}}, nil
		}
		b.gpus[0].card = c
		b.begin(1, 0, 0)
		b.begin(2, 0, 0)
		b.scan()
		b.until(b.now.Add(20 * time.Minute))
		if got := b.idleFor(); len(got) != want || want == 1 && got[2] == 0 {
			t.Errorf("told apart %v: idle %v", told, got)
		}
	}
}

// A GPU that doesn't answer is no idle one.
func TestWhatIsNotReadIsNotIdle(t *testing.T) {
	b := newBench(t)
	c := b.steady()
	c.use = func() (float64, float64, error) { return 0, 0, nvml.ErrNotSupported }
	b.gpus[0].card = c
	b.begin(1, 0, 0)
	b.scan()
	b.until(b.now.Add(time.Hour))
	if got := b.idleFor(); len(got) > 0 {
		t.Error(got)
	}
}

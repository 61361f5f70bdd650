package agent

import (
	"errors"
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"pgregory.net/rapid"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/nvml"
	"github.com/slurmbridge/slurmbridge/prolog"
)

// odd is what a driver may say that isn't so.
var odd = []float64{-1, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 4e9, math.MaxUint32, -1e-9}

// Each figure by itself fails or lies in every way, now and then or always: the
// record says nothing that isn't so, keeps the others, and counts what was dropped.
func TestEveryFigureMayLie(t *testing.T) {
	broken := []error{nvml.ErrImplausible, errors.New("unknown error"), nvml.ErrNotSupported}
	// Each figure's place on the card, and its name in the record.
	for place, figure := range map[string]string{
		"use": "gpu", "memory": "mem", "pcie": "pcie", "power": "power", "act": "core", "uses": "core",
	} {
		for kind := range 2 * (len(odd) + len(broken)) {
			always, kind := kind%2 == 0, kind/2
			b := newBench(t)
			c, n := b.card(0), 0
			lie := func(honest func() (float64, error)) func() (float64, error) {
				return func() (float64, error) {
					if n++; !always && n%3 != 0 {
						return honest()
					}
					if kind < len(odd) {
						return odd[kind], nil
					}
					return 0, broken[kind-len(odd)]
				}
			}
			core := lie(is(0.4))
			switch place {
			case "use":
				c.use = lie(c.use)
			case "memory":
				c.memory = lie(c.memory)
			case "pcie":
				c.pcie = lie(c.pcie)
			case "power":
				c.power = lie(c.power)
			case "act":
				c.act = func() (nvml.Activity, error) { v, err := core(); return nvml.Activity{SM: v}, err }
			case "uses":
				c.uses = func() ([]nvml.ProcessUse, error) {
					v, err := core()
					return []nvml.ProcessUse{{PID: 1, At: b.now, SM: v}}, err
				}
			}
			b.begin(7, 0)
			b.elapse(time.Minute)
			r := b.ended(7)
			if r.Power == nil {
				r.Power = &gpuprof.Power{}
			}
			for f, v := range map[string][3]float64{ // what is said, the truth, and how far off it may be
				"gpu": {r.Mean.GPU, 0.5, 0.01}, "mem": {r.Peak.MemMiB, 1000, 20}, "pcie": {r.Mean.PCIeMBps, 400, 8},
				"power": {r.Power.MeanW, 145, 7},
			} {
				ok := math.Abs(v[0]-v[1]) <= v[2]
				if always && f == figure {
					ok = slices.Contains(r.Unknown, f)
				}
				if !ok {
					t.Errorf("%s, way %d: %s is %v, want %v; unknown %v", place, kind, f, v[0], v[1], r.Unknown)
				}
			}
			lied := kind <= len(odd) // ErrImplausible too
			if n := b.dropped(figure); lied != (n > 0) || b.dropped() > n {
				t.Errorf("%s, way %d: %v dropped, %v in all", place, kind, n, b.dropped())
			}
			must.Equal(t, r.Failed, 0, "failures: %s, way %d", place, kind)
			must.Equal(t, r.MissedS, 0, "missed: %s, way %d", place, kind)
		}
	}
}

// dropped counts the readings of these figures, or of all, that couldn't be true.
func (b *bench) dropped(figures ...string) (n float64) {
	for _, f := range gpuprof.AllFigures().Names() {
		if len(figures) == 0 || slices.Contains(figures, f) {
			n += testutil.ToFloat64(b.Metrics.lies.WithLabelValues(f))
		}
	}
	return n
}

// PCIe is slow to read: fast steps don't read it oftener than once a
// period, and what they didn't read isn't unknown. Performance monitoring saves it.
func TestPCIeIsReadOnceAPeriod(t *testing.T) {
	for counts, want := range map[bool]int{false: 20, true: 0} {
		b := newBench(t)
		c := b.card(0)
		n, uses := 0, 0
		c.pcie = func() (float64, error) { n++; return 400, nil }
		c.use = func() (float64, error) { uses++; return float64(uses % 2), nil }
		if counts {
			c.act = func() (nvml.Activity, error) {
				return nvml.Activity{SM: 0.5, PCIeMBps: 500 * float64(uses%2)}, nil
			}
		}
		b.begin(7, 0)
		b.elapse(20 * time.Second) // flickers
		r := b.ended(7)
		if n > want+2 || n < want-2 || uses < 60 {
			t.Errorf("read %d times, utilisation %d times", n, uses)
		}
		if mean := r.Mean.PCIeMBps; slices.Contains(r.Unknown, "pcie") || math.Abs(mean-400) > 1e-6 && !counts || counts &&
			!(mean > 100 && mean < 400) {
			t.Errorf("%v MB/s, unknown %v", mean, r.Unknown)
		}
	}
}

// Zeros are dropped where other figures belie them.
func TestZerosThatOtherFiguresBelie(t *testing.T) {
	b := newBench(t)
	c := b.card(0)
	c.memory, c.power = is(0), is(0)
	c.act = func() (nvml.Activity, error) { return nvml.Activity{SM: 0.4}, nil }
	b.begin(7, 0)
	b.elapse(time.Minute)
	c.use = is(0)
	b.elapse(time.Minute)
	r := b.ended(7)
	if b.dropped("gpu") == 0 || b.dropped("mem") == 0 || b.dropped("power") == 0 ||
		b.dropped("gpu", "mem", "power") != b.dropped() {
		t.Error(b.dropped("gpu"), b.dropped("mem"), b.dropped("power"), b.dropped())
	}
	if math.Abs(r.Mean.GPU-0.5) > 0.02 || r.Power != nil || !slices.Contains(r.Unknown, "mem") {
		t.Errorf("%+v", r)
	}
}

// A GPU that is lost for a while costs that while, and one that comes back goes on.
func TestLostGPU(t *testing.T) {
	b := newBench(t)
	b.begin(7, 0)
	for _, err := range []error{nil, nvml.ErrLost, nil} {
		b.card(0).err = err
		b.elapse(100 * time.Second)
	}
	if r := b.ended(7); r.MissedS < 90 || r.MissedS > 115 || r.Failed == 0 || r.Mean.GPU != 0.5 {
		t.Errorf("missed %v s, %d failed, mean %v", r.MissedS, r.Failed, r.Mean)
	}
}

// What a job did while its node was suspended isn't known: the clock on the wall goes on, and the monotonic one doesn't.
func TestSuspendedNode(t *testing.T) {
	b := newBench(t)
	b.now = time.Now()
	b.begin(7, 0)
	b.elapse(time.Minute)
	woken := b.now.Add(time.Hour)
	(*[2]int64)(unsafe.Pointer(&woken))[1] = (*[2]int64)(unsafe.Pointer(&b.now))[1] // the monotonic clock
	b.now = woken
	b.sample()
	b.elapse(time.Minute)
	r := b.ended(7)
	must.Near(t, r.MissedS, 3600, 15, "missed")
	must.Near(t, r.DurationS(), 3720, 1, "duration")
}

// A GPU that NVML had lost before the agent started keeps its place, and a job on it, or on one that doesn't exist,
// costs nobody else anything.
func TestGPULostBeforeTheStart(t *testing.T) {
	all := []nvml.Device{{UUID: "GPU-0"}, {Index: 1, Minor: 1, Lost: "GPU is lost"}, {Index: 2, Minor: 2, UUID: "GPU-2"}}
	b := newBench(t, all...)
	for i, c := range must.Get(b.Dir.Cards(""))(t) {
		must.Equal(t, prolog.Card{NVMLIndex: c.NVMLIndex, UUID: c.UUID, Lost: c.Lost},
			prolog.Card{NVMLIndex: i, UUID: all[i].UUID, Lost: i == 1})
	}
	for id, gpu := range []int{1, 8, 2} {
		b.begin(int64(1+id), gpu)
	}
	b.elapse(20 * time.Second)
	b.wants("gpu 1 of Slurm's", "gpu 8 of Slurm's", "lost 1")
	must.Equal(t, b.ended(1).Mean.GPU, 0)
	must.Equal(t, b.ended(3).GPUs[0].UUID, all[2].UUID)
}

// What the job before used, up to its end, is no part of a job's use.
func TestUseOfTheJobBefore(t *testing.T) {
	b := newBench(t)
	c := b.card(0)
	b.begin(7, 0)
	b.elapse(10 * time.Second)
	last := nvml.ProcessUse{PID: 70, At: b.now.Add(500 * time.Millisecond), SM: 0.9}
	c.uses = func() ([]nvml.ProcessUse, error) {
		if last.At.After(c.since) {
			return []nvml.ProcessUse{last}, nil
		}
		return nil, nil
	}
	b.now = b.now.Add(time.Second)
	b.ended(7)
	b.now = b.now.Add(time.Millisecond)
	c.use = is(0)
	b.begin(8, 0)
	b.elapse(10 * time.Second)
	if r := b.ended(8); r.Peak.Core > 0.1 {
		t.Errorf("peak %+v", r.Peak)
	}
}

// Whatever the drivers of several GPUs say, however jobs come and go, whatever the
// clock does: no crash, and every record can be true.
func TestAnyFiguresAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		value := func() float64 {
			return rapid.OneOf(rapid.SampledFrom(odd), rapid.Float64Range(0, 1), rapid.Float64Range(0, 2e4),
				rapid.SampledFrom([]float64{0, 0, 0.5})).Draw(rt, "value")
		}
		fails := func() error {
			return rapid.SampledFrom([]error{
				nil, nil, nil, nil, nvml.ErrImplausible, nvml.ErrLost, nvml.ErrNotSupported,
				nvml.ErrNotYet,
			}).Draw(rt, "error")
		}
		one := func() (float64, error) { return value(), fails() }
		for i := range b.gpus {
			c := b.card(i)
			*c = card{
				use:    func() (float64, error) { c.memBusy = value(); return one() },
				memory: one, power: one, pcie: one,
				act: func() (nvml.Activity, error) {
					return nvml.Activity{SM: value(), Graphics: value(), PCIeMBps: value()}, fails()
				},
				procs: func() ([]nvml.Process, error) {
					return []nvml.Process{{PID: 1, MemMiB: value()}, {PID: 2, MemMiB: value()}}, fails()
				},
				uses: func() ([]nvml.ProcessUse, error) {
					at := time.Duration(rapid.Int64().Draw(rt, "at"))
					return []nvml.ProcessUse{{PID: 1, At: b.now.Add(at), SM: value()}}, fails()
				},
			}
		}
		b.inProc(map[int]int64{1: 1, 2: 2})
		running := map[int64]bool{}
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			b.now = b.now.Add(time.Duration(rapid.Int64Range(-3, 30).Draw(rt, "dt")) * time.Second / 4)
			id := rapid.Int64Range(1, 3).Draw(rt, "job")
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				gpus := rapid.SampledFrom([][]int{{0}, {1}, {0, 1}, {0, 9}}).Draw(rt, "gpus")
				if !running[id] {
					b.prolog(prolog.JobFile{JobID: id, Restart: len(b.kept.recs), GPUs: gpus})
					running[id] = true
				}
				b.scan()
			case 1:
				b.end(id)
				delete(running, id)
				b.scan()
			case 2:
				b.restart()
			default:
				b.elapse(3 * time.Second)
			}
		}
		for id := range running {
			b.end(id)
		}
		b.scan()
		if len(b.jobs) != 0 {
			rt.Fatalf("still tracked: %v", b.jobs)
		}
		for _, r := range b.kept.recs {
			must.OK(rt, r.Validate())
		}
	})
}

package agent

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

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
	// One clean record per lie: what the honest figures say must not change.
	for _, figure := range []string{"gpu", "mem", "pcie", "power", "core", "process"} {
		for _, always := range []bool{true, false} {
			for kind := range len(odd) + len(broken) {
				b := newBench(t)
				c := b.steady()
				n := 0
				lie := func(v float64) (float64, error) {
					if n++; !always && n%3 != 0 {
						return v, nil
					}
					if kind < len(odd) {
						return odd[kind], nil
					}
					return 0, broken[kind-len(odd)]
				}
				switch figure {
				case "gpu":
					c.use = func() (float64, float64, error) { v, err := lie(0.5); return v, 0, err }
				case "mem":
					c.memory = func() (float64, error) { return lie(1000) }
				case "pcie":
					c.pcie = func() (float64, error) { return lie(400) }
				case "power":
					c.power = func() (float64, error) { return lie(150) }
				case "core":
					c.act = func() (nvml.Activity, error) { v, err := lie(0.4); return nvml.Activity{SM: v}, err }
				case "process":
					c.uses = func(time.Time) ([]nvml.ProcessUse, error) {
						v, err := lie(0.4)
						return []nvml.ProcessUse{{PID: 1, At: b.now, SM: v}}, err
					}
				}
				b.gpus[0].card = c
				b.begin(7, 0, 0)
				b.scan()
				b.until(b.now.Add(time.Minute))
				b.end(7)
				r := b.closed(7)
				name := strings.Replace(figure, "process", "core", 1)
				told := func(f string) bool { return !slices.Contains(r.Unknown, f) }
				gone := func(f string) bool { return always && f == figure }
				near := func(f string, got, want float64) {
					if !gone(f) && math.Abs(got-want) > 0.02*want {
						t.Errorf("%s, way %d: %s is %v, want %v", figure, kind, f, got, want)
					}
					if gone(f) && told(f) && f != "core" {
						t.Errorf("%s, way %d: nothing says that it isn't known", figure, kind)
					}
				}
				near("gpu", r.Mean.GPU, 0.5)
				near("mem", r.Peak.MemMiB, 1000)
				near("pcie", r.Mean.PCIeMBps, 400)
				if !gone("power") && (r.Power == nil || r.Power.MeanW < 138 || r.Power.MeanW > 151) {
					t.Errorf("%s, way %d: power %+v", figure, kind, r.Power)
				}
				lied := kind <= len(odd) // ErrImplausible too
				if n := b.dropped(name); lied != (n > 0) || b.dropped() > n {
					t.Errorf("%s, way %d: %v dropped, %v in all", figure, kind, n, b.dropped())
				}
				if r.Failed != 0 || r.MissedS != 0 {
					t.Errorf("%s, way %d: %d failed, missed %v s", figure, kind, r.Failed, r.MissedS)
				}
			}
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

// PCIe is slow to read: neither fast steps nor bursts read it oftener than once a
// period, and what they didn't read isn't unknown. Performance monitoring saves it.
func TestPCIeIsReadOnceAPeriod(t *testing.T) {
	for _, counts := range []bool{false, true} {
		b := newBench(t)
		c := b.steady()
		n, uses := 0, 0
		c.pcie = func() (float64, error) { n++; return 400, nil }
		c.use = func() (float64, float64, error) { uses++; return float64(uses % 2), 0, nil }
		if counts {
			c.act = func() (nvml.Activity, error) {
				return nvml.Activity{SM: 0.5, PCIeMBps: 500 * float64(uses%2)}, nil
			}
		}
		b.gpus[0].card = c
		b.begin(7, 0, 0)
		b.scan()
		b.until(b.now.Add(20 * time.Second)) // flickers, and has a burst
		b.end(7)
		r := b.closed(7)
		want := 20
		if counts {
			want = 0
		}
		if n > want+2 || n < want-2 || uses < 200 {
			t.Errorf("read %d times, utilisation %d times", n, uses)
		}
		if mean := r.Mean.PCIeMBps; slices.Contains(r.Unknown, "pcie") || math.Abs(mean-400) > 1e-6 && !counts || counts &&
			!(mean > 100 && mean < 400) {
			t.Errorf("%v MB/s, unknown %v", mean, r.Unknown)
		}
	}
}

// Zeros are dropped where other figures belie them.
func TestZeros(t *testing.T) {
	b := newBench(t)
	c := b.steady()
	c.memory, c.power = is(0), is(0)
	c.act = func() (nvml.Activity, error) { return nvml.Activity{SM: 0.4}, nil }
	b.gpus[0].card = c
	b.begin(7, 0, 0)
	b.scan()
	b.until(b.now.Add(time.Minute))
	c.use = func() (float64, float64, error) { return 0, 0, nil }
	b.until(b.now.Add(time.Minute))
	b.end(7)
	r := b.closed(7)
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
	c := b.steady()
	honest := c.use
	b.gpus[0].card = c
	b.begin(7, 0, 0)
	b.scan()
	b.until(b.now.Add(100 * time.Second))
	c.use = func() (float64, float64, error) { return 0, 0, nvml.ErrLost }
	b.until(b.now.Add(100 * time.Second))
	c.use = honest
	b.until(b.now.Add(100 * time.Second))
	b.end(7)
	r := b.closed(7)
	if r.MissedS < 90 || r.MissedS > 115 || r.Failed == 0 || r.Mean.GPU != 0.5 {
		t.Errorf("missed %v s, %d failed, mean %v", r.MissedS, r.Failed, r.Mean)
	}
}

// A GPU that NVML had lost before the agent started keeps its place, and a job on it, or on one that doesn't exist,
// costs nobody else anything.
func TestGPULostBeforeTheStart(t *testing.T) {
	b := node(t)
	b.Devices = eight()
	b.Devices[1] = nvml.Device{Index: 1, Minor: 1, Lost: "GPU is lost"}
	must.OK(t, b.Start())
	cards, err := b.Dir.Cards("")
	must.OK(t, err)
	for i, d := range b.Devices {
		must.Equal(t, cards[i].NVMLIndex, i)
		must.Equal(t, cards[i].UUID, d.UUID)
		must.Equal(t, cards[i].Lost, i == 1)
	}
	for i, g := range b.gpus {
		if i != 1 {
			g.card = b.steady()
		}
	}
	b.begin(101, 0, 1)
	b.begin(102, 0, 8)
	b.begin(103, 0, 2)
	must.OK(t, b.Dir.Make())
	b.scan()
	b.until(b.now.Add(20 * time.Second))
	b.wants("gpu 1 of Slurm's", "gpu 8 of Slurm's", "lost 1")
	b.end(101)
	b.end(103)
	must.Equal(t, b.closed(101).Mean.GPU, 0)
	must.Equal(t, b.closed(103).GPUs[0].UUID, b.Devices[2].UUID)
}

// What the job before used, up to its end, is no part of a job's use.
func TestUseOfTheJobBefore(t *testing.T) {
	b := newBench(t)
	c := b.steady()
	of := []nvml.ProcessUse{}
	c.uses = func(since time.Time) (out []nvml.ProcessUse, _ error) {
		for _, u := range of {
			if u.At.After(since) {
				out = append(out, u)
			}
		}
		return out, nil
	}
	b.gpus[0].card = c
	b.begin(7, 0, 0)
	b.scan()
	b.until(b.now.Add(10 * time.Second))
	of = append(of, nvml.ProcessUse{PID: 70, At: b.now.Add(500 * time.Millisecond), SM: 0.9})
	b.now = b.now.Add(time.Second)
	b.end(7)
	b.scan()
	b.now = b.now.Add(time.Millisecond)
	c.use = func() (float64, float64, error) { return 0, 0, nil }
	b.begin(8, 0, 0)
	b.scan()
	b.until(b.now.Add(10 * time.Second))
	b.end(8)
	if r := b.closed(8); r.Peak.Core > 0.1 {
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
		for _, g := range b.gpus {
			g.card = &card{
				use:    func() (float64, float64, error) { return value(), value(), fails() },
				memory: one, power: one, pcie: one,
				act: func() (nvml.Activity, error) {
					return nvml.Activity{SM: value(), Graphics: value(), PCIeMBps: value()}, fails()
				},
				procs: func() ([]nvml.Process, error) {
					return []nvml.Process{{PID: 1, MemMiB: value()}, {PID: 2, MemMiB: value()}}, fails()
				},
				uses: func(time.Time) ([]nvml.ProcessUse, error) {
					at := time.Duration(rapid.Int64().Draw(rt, "at"))
					return []nvml.ProcessUse{{PID: 1, At: b.now.Add(at), SM: value()}}, fails()
				},
				points: func(time.Time) ([]nvml.Point, error) { return []nvml.Point{{GPU: value()}}, fails() },
			}
		}
		b.proc(map[int]int64{1: 1, 2: 2})
		running := map[int64]bool{}
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			b.now = b.now.Add(time.Duration(rapid.Int64Range(-3, 30).Draw(rt, "dt")) * time.Second / 4)
			id := rapid.Int64Range(1, 3).Draw(rt, "job")
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				gpus := rapid.SampledFrom([][]int{{0}, {1}, {0, 1}, {0, 9}}).Draw(rt, "gpus")
				if !running[id] {
					must.OK(rt, b.Dir.Begin(&prolog.Job{
						JobID: id, Restart: len(b.kept.recs), GPUs: gpus,
						UUIDs: uuids(rt, b.Dir, gpus...), Start: b.now,
					}))
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
				b.until(b.now.Add(3 * time.Second))
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

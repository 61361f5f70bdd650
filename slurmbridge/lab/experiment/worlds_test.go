package experiment

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Each world's table names the applications that it has profiles of, and all of them.
func TestPlaces(t *testing.T) {
	cells := map[string]int{
		"law": 0, "alnair": 49, "miso": 318, "gavel_p100": 632, "gavel_k80": 566, "alnair_varied": 49,
		"miso_varied": 318, "alnair_sweeps": 49, "miso_sweeps": 318,
	}
	for _, name := range Worlds() {
		p := must.Get(PlaceNamed(name))(t)
		if n, ok := cells[name]; !ok || n != len(p.Pairs) {
			t.Errorf("%s has %d pairs, not %d", name, len(p.Pairs), n)
		}
		known := map[string]bool{}
		for _, x := range p.Profiles {
			known[x.App] = true
			if err := x.Validate(); err != nil || x.Peak().MemMiB > p.Card.MemMiB {
				t.Errorf("%s: %s: %v, or it doesn't fit on the card", name, x.App, err)
			}
		}
		met := map[string]bool{}
		for _, x := range p.Pairs {
			met[x.Victim], met[x.Aggressor] = true, true
		}
		if name != "law" && !reflect.DeepEqual(known, met) {
			t.Errorf("%s: profiles of %v, pairs of %v", name, known, met)
		}
	}
	if _, err := PlaceNamed("nowhere"); !errors.Is(err, ErrOptions) {
		t.Errorf("no world of that name: %v", err)
	}
}

// Where runs differ the mean of their lengths stays about what is known of them, and each fits its limit alone.
func TestVariedRuns(t *testing.T) {
	p := must.Get(PlaceNamed("alnair_varied"))(t)
	o := Options{Jobs: 5000, DurationError: new(float64)}
	must.OK(t, o.Check(&InWorlds))
	r := must.Get(p.ready(&o, 1, 7))(t)
	again, _ := p.ready(&o, 1, 7)
	ratio := 0.0
	for i := range r.Config.Jobs {
		j := &r.Config.Jobs[i]
		ratio += j.Truth.DurationS / j.Profile.DurationS / float64(len(r.Config.Jobs))
		if j.LimitS < leastOfLimit*j.Truth.DurationS || j.LimitS > mostOfLimit*j.Truth.DurationS ||
			j.Profile.DurationSD <= 0 {
			t.Fatalf("job %s takes %v s with a limit of %v s; its application %v ± %v s", j.ID, j.Truth.DurationS, j.LimitS,
				j.Profile.DurationS, j.Profile.DurationSD)
		}
		if a := &again.Config.Jobs[i]; a.LimitS != j.LimitS || a.Truth.DurationS != j.Truth.DurationS {
			t.Fatal("the same seed draws other runs")
		}
	}
	if ratio < .93 || ratio > 1.07 {
		t.Errorf("runs take %v of what is known on average", ratio)
	}
}

// In a world of sweeps every run fits its limit, a step of the ladder; many fail at once; a few users have most of the
// work; what comes is as much work as asked for, and the site knows earlier runs.
func TestSweeps(t *testing.T) {
	p := must.Get(PlaceNamed("alnair_sweeps"))(t)
	const n, gpus, load = 4000, 10, .9
	tr := p.sweeps(gpus, n, load, 3)
	must.Equal(t, p.sweeps(gpus, n, load, 3).Jobs, tr.Jobs, "the same seed draws other jobs: ")
	work, failed, byUser := 0.0, 0, map[string]int{}
	for _, j := range tr.Jobs {
		if !slices.Contains(ladder[:], j.LimitS/3600) || j.DurationS > j.LimitS {
			t.Fatalf("%+v", j)
		}
		if work += j.DurationS; j.DurationS <= mostFailS {
			failed++
		}
		byUser[j.User]++
	}
	heavy := 0
	for i := range heavyUsers {
		heavy += byUser[fmt.Sprintf("user%d", i)]
	}
	came := tr.Jobs[n-1].SubmitS - tr.Jobs[0].SubmitS
	if got := work / came / gpus; len(tr.Jobs) != n || failed < n/10 || failed > n/4 || heavy < n*6/10 || got < .6*load ||
		got > 1.5*load {
		t.Errorf("%d jobs, of which %d fail at once and %d are the heavy users'; they bring %v of what the GPUs do",
			len(tr.Jobs), failed, heavy, got)
	}
	for _, q := range tr.Profiles {
		if q.DurationSD > 0 && len(q.Past) == 0 || q.Validate() != nil {
			t.Errorf("%s: %d earlier runs are known, %v", q.App, len(q.Past), q.Validate())
		}
	}
}

// A load of 1 is as much work as the GPUs do in the time in which it comes.
func TestLoad(t *testing.T) {
	p := must.Get(PlaceNamed("alnair"))(t)
	for _, load := range []float64{0.5, 1.3} {
		tr := p.Trace(3, 4000, load, 1)
		work := 0.0
		for _, j := range tr.Jobs {
			work += j.DurationS
		}
		if got := work / 3 / tr.Jobs[len(tr.Jobs)-1].SubmitS; got < 0.9*load || got > 1.1*load {
			t.Errorf("load %v: %v", load, got)
		}
	}
}

func TestWorlds(t *testing.T) {
	o := Options{
		Workloads: []string{"law", "alnair"}, Loads: []float64{1.1}, Policies: []string{Fifo, "greedy", "srpt", "dqn"},
		Seeds: 2, Seed: 1, Jobs: 80,
		Effort: Effort{Tune: 1}, MaxSlowdown: rlcore.DefaultMaxSlowdown,
	}
	r := must.Get(Run(t.Context(), o, &InWorlds))(t)
	for _, place := range o.Workloads {
		lines := r.Lines[place]["1.1"]
		if len(lines) != len(o.Policies) {
			t.Fatalf("%s: lines of %d policies", place, len(lines))
		}
		fifo, bound := lines[Fifo], r.LowerBoundS[place]["1.1"]
		if fifo.VsFifo != 1 || fifo.Late != 0 || fifo.MaxSlowdown > 1+1e-9 {
			t.Errorf("%s: fifo %+v", place, fifo)
		}
		for name, l := range lines {
			if l.TurnaroundS < bound-1e-6 || l.OOM > 0 {
				t.Errorf("%s: %s: %+v; the lower bound is %v s", place, name, l, bound)
			}
		}
		// Under the guard a policy that shares shortens turnaround and is hardly ever late.
		for _, name := range []string{"greedy", "srpt", "dqn"} {
			if l := lines[name]; l.VsFifo > 0.9 || l.Late > 0.05 || l.P95Slowdown > rlcore.DefaultMaxSlowdown {
				t.Errorf("%s: %s: %+v", place, name, l)
			}
		}
	}
}

package experiment

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"gonum.org/v1/gonum/stat"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// Each world's table names the applications that it has profiles of, and all of them.
func TestWorldsNameTheirApplications(t *testing.T) {
	cells := map[string]int{
		"law": 0, "alnair": 49, "miso": 318, "gavel_p100": 632, "gavel_k80": 566, "alnair_users": 49,
		"miso_users": 318, "alnair_clusters": 49, "miso_clusters": 318, "alnair_sweeps": 49, "miso_sweeps": 318,
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
	must.Is(t, must.Err(PlaceNamed("nowhere")), ErrOptions, "no world of that name")
}

// Whatever their users' habits, worlds bring as much work as asked for, each run fits its limit, a step of the ladder,
// and the site knows earlier runs. Without the user, the limit and the session the spread of lengths is that of the
// habits.
func TestLengthsByHabits(t *testing.T) {
	const n, gpus, load = 6000, 10, .9
	for name, want := range map[string]struct {
		spread  float64 // of an application's logarithms
		short   float64 // part of the runs of less than a tenth of the typical length
		limited bool
	}{
		"alnair": {.7, 0, false}, "alnair_users": {.98, .03, true}, "alnair_clusters": {1.56, .4, true},
		"alnair_sweeps": {2.3, .2, true},
	} {
		p := must.Get(PlaceNamed(name))(t)
		tr, jobs := p.draw(gpus, n, load, 3)
		if _, again := p.draw(gpus, n, load, 3); !slices.Equal(again, jobs) {
			t.Errorf("%s: the same seed draws other jobs", name)
		}
		work, heavy, short, logs := 0.0, 0.0, 0.0, map[string][]float64{}
		for _, j := range jobs {
			if j.limitS > 0 != want.limited || want.limited && !slices.Contains(ladder[:], j.limitS/3600) ||
				j.limitS > 0 && j.tookS > j.limitS {
				t.Fatalf("%s: %+v", name, j)
			}
			work += j.tookS
			logs[j.app] = append(logs[j.app], math.Log(j.tookS))
			if j.user < "user5" && len(j.user) == len("user5") {
				heavy++
			}
			if j.tookS < p.habits.medianS/10 {
				short++
			}
		}
		spread := 0.0
		for _, x := range logs {
			spread += stat.StdDev(x, nil) / float64(len(logs))
		}
		came := jobs[n-1].submitS - jobs[0].submitS
		if got := work / came / gpus; got < .6*load || got > 1.5*load || heavy < .6*n {
			t.Errorf("%s: a load of %.2f, %.0f of %d jobs by heavy users", name, got, heavy, n)
		}
		must.Near(t, spread, want.spread, .3*want.spread, "the spread of %s", name)
		must.Near(t, short/n, want.short, .1, "the part of short runs in %s", name)
		for _, q := range tr.Profiles {
			if q.DurationSD == 0 || q.Runs > 0 != (len(q.Past) > 0) || q.Validate() != nil {
				t.Errorf("%s: %s: %d earlier runs are known, %v", name, q.App, len(q.Past), q.Validate())
			}
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

// Who knows lengths and slowdowns makes no job late, and jobs end sooner than by what a site knows.
func TestOmniscient(t *testing.T) {
	o := Options{
		Workloads: []string{"miso_users"}, Loads: []float64{.9}, Policies: []string{"srpt"}, Seeds: 2, Seed: 1, Jobs: 150,
		GPUs: 4, Effort: Effort{Tune: 1}, MaxSlowdown: rlcore.DefaultMaxSlowdown,
	}
	known := must.Get(Run(t.Context(), o, &InWorlds))(t).Lines["miso_users"]["0.9"]["srpt"]
	o.Omniscient = true
	all := must.Get(Run(t.Context(), o, &InWorlds))(t).Lines["miso_users"]["0.9"]["srpt"]
	if all.Late > 0 || known.Late == 0 || all.VsFifo >= known.VsFifo {
		t.Errorf("omniscient %+v\nelse %+v", all, known)
	}
}

package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
)

// exhaust returns the least objective over all sequences of decisions: at each
// one any set of the pending jobs may start, or none. Runs that are lost and jobs
// that wait for ever don't count.
func exhaust(t *testing.T, cfg Config, objective Objective) float64 {
	t.Helper()
	cfg.M, cfg.MaxDelayS = math.MaxInt, math.MaxFloat64
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	best, tried := math.Inf(1), 0
	defer func() { t.Log(tried, "sequences") }()
	var script []int // the set taken at each decision; it is counted up like a number
	var sizes []int
	for {
		s.reset()
		tried++
		at := 0
		for s.oom == 0 && s.Next() {
			if at == len(script) {
				script, sizes = append(script, 0), append(sizes, 1<<len(s.wait))
			}
			var set []int
			for i := range len(s.wait) {
				if script[at]>>i&1 == 1 {
					set = append(set, i)
				}
			}
			at++
			s.Start(set)
		}
		if r, err := s.Result(); err == nil && r.OOM == 0 {
			best = min(best, objective(r))
		}
		script, sizes = script[:at], sizes[:at]
		for len(script) > 0 && script[len(script)-1] == sizes[len(sizes)-1]-1 {
			script, sizes = script[:len(script)-1], sizes[:len(sizes)-1]
		}
		if len(script) == 0 {
			return best
		}
		script[len(script)-1]++
	}
}

// On sites small enough to try everything the search finds the optimum.
func TestClairvoyantFindsTheOptimum(t *testing.T) {
	if testing.Short() {
		t.Skip("takes more than 5 s")
	}
	names := apps.Names()
	for _, c := range []struct {
		gpus, jobs int
		seed       uint64
		objective  Objective
	}{
		{1, 3, 1, Makespan},
		{1, 4, 2, Makespan},
		{1, 4, 3, Makespan},
		{1, 4, 4, Turnaround},
		{1, 4, 5, Turnaround},
		{2, 3, 6, Makespan},
		{2, 3, 7, Turnaround},
		{2, 4, 8, Makespan},
	} {
		r := rand.New(rand.NewPCG(c.seed, 1))
		var ps []*rlcore.Profile
		for range c.jobs {
			p, _ := apps.ByName(names[r.IntN(len(names))])
			coarse(p)
			ps = append(ps, p)
		}
		cfg := config(c.gpus, ps...)
		want := exhaust(t, cfg, c.objective)
		got, err := Clairvoyant(cfg, 1500, c.seed, c.objective)
		if err != nil {
			t.Fatal(err)
		}
		if v := c.objective(got); got.OOM > 0 || math.Abs(v-want) > 1e-9*want {
			t.Errorf("%d jobs on %d GPUs, seed %d: %v with %d runs lost; the optimum is %v", c.jobs, c.gpus, c.seed, v, got.OOM,
				want)
		}
	}
}

// coarse makes a catalogue's profile cheap to run: a point every ten seconds.
func coarse(p *rlcore.Profile) {
	var out []rlcore.Use
	for i := 0; i < len(p.Series); i += 10 {
		out = append(out, p.Series[i])
	}
	p.Series, p.PeriodS = out, 10
}

// Never worse than what it is shown, the same for the same seed, and no run lost.
func TestClairvoyantKeepsTheBest(t *testing.T) {
	for seed := range uint64(4) {
		cfg := catalogue(t, 1+int(seed%2), 15, seed)
		poisson(cfg.Jobs, 5, rand.New(rand.NewPCG(seed, 2)))
		best := math.Inf(1)
		var from []*Result
		for _, d := range []*rlcore.Decider{
			decider(t, "sjf"), decider(t, "greedy"), decider(t, "pack"),
			{Policy: choice(crowd), Guard: Bare()},
		} {
			r := run(t, cfg, d)
			from = append(from, r)
			if r.OOM == 0 {
				best = min(best, r.MakespanS)
			}
		}
		for _, tries := range []int{0, 1, 200} {
			got, err := Clairvoyant(cfg, tries, seed, Makespan, from...)
			if err != nil {
				t.Fatal(err)
			}
			if got.MakespanS > best || got.OOM > 0 {
				t.Errorf("seed %d: %v s and %d runs lost after %d tries; shown %v s", seed, got.MakespanS, got.OOM, tries, best)
			}
			again, err := Clairvoyant(cfg, tries, seed, Makespan, from...)
			if err != nil || !reflect.DeepEqual(got, again) {
				t.Errorf("seed %d: two searches differ (%v)", seed, err)
			}
		}
	}
}

// What the card, an owner or a lack of measurements rules out, foresight doesn't
// make right.
func TestClairvoyantKeepsTheRules(t *testing.T) {
	light := func(app string) *rlcore.Profile { return constant(app, 100, .1, 500) }
	for name, c := range map[string]struct {
		spoil func(*Config)
		want  float64
	}{
		"nothing in the way": {func(*Config) {}, 101},
		"two users":          {func(c *Config) { c.Jobs[1].User = "v" }, 201},
		"wants to be alone":  {func(c *Config) { c.Jobs[1].NoShare = true }, 201},
		"one client":         {func(c *Config) { c.GPUs[0].MaxClients = 1 }, 300},
		"two clients":        {func(c *Config) { c.GPUs[0].MaxClients = 2 }, 201},
		"memory":             {func(c *Config) { c.Jobs[0].Profile.Series[0].MemMiB = 12000 }, 201},
		"measured":           {func(c *Config) { c.Truth = pairsOf("a", "b", "c") }, 100},
		"one not measured":   {func(c *Config) { c.Truth = pairsOf("a", "b") }, 200},
	} {
		cfg := config(1, light("a"), light("b"), light("c"))
		c.spoil(&cfg)
		r, err := Clairvoyant(cfg, 300, 1, Makespan)
		if err != nil {
			t.Fatal(err)
		}
		if r.MakespanS > c.want || r.MakespanS < c.want-1 || r.OOM > 0 {
			t.Errorf("%s: %v s and %d runs lost, want about %v", name, r.MakespanS, r.OOM, c.want)
		}
	}
	cfg := config(3)
	for i := range 6 {
		cfg.Jobs = append(cfg.Jobs,
			Arrival{Job: rlcore.Job{ID: fmt.Sprint(i), User: "u", Profile: light("a"), GPUs: rlcore.NewGPUSet(i % 2)}})
	}
	r, err := Clairvoyant(cfg, 300, 1, Makespan)
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.Jobs {
		if r.Jobs[i].GPU != i%2 {
			t.Errorf("job %d runs on GPU %d", i, r.Jobs[i].GPU)
		}
	}
}

// pairsOf is a table in which the named applications don't slow each other.
func pairsOf(names ...string) Pairs {
	t := Pairs{}
	for _, a := range names {
		for _, b := range names {
			t[[2]string{a, b}] = 1
		}
	}
	return t
}

package loop_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/property"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"

	"pgregory.net/rapid"
)

// arrival is a job of a history.
type arrival struct {
	atS   int
	user  string
	takes float64 // alone, s
	gpu   float64
	mem   float64
	limit float64 // s; 0 = none
	node  string  // the only one it may use
	whole int     // GPUs that it takes whole, of one node, without the bridge; 0 = it may share
}

// together makes the jobs of a GPU slow each other as fair predicts, and each end once its work is done.
func together(m *model) {
	done := map[*mjob]float64{}
	m.beside = func() {
		sum := map[job.GPUAddr]float64{}
		all := m.running(func(*mjob) bool { return true })
		for _, j := range all {
			sum[job.GPUAddr{Node: j.Nodes, GPU: j.gpu}] += j.profil.Mean().GPU
		}
		for _, j := range all {
			if done[j] += 1 / max(1, sum[job.GPUAddr{Node: j.Nodes, GPU: j.gpu}]); done[j] >= j.profil.DurationS {
				j.run = m.now.Sub(j.began)
			}
		}
	}
}

// play lets the jobs of a history come, and returns after how many seconds each has ended; +Inf = at its limit.
func play(history []arrival, nodes []job.Node, adapt func(m *model) (tick func())) []float64 {
	m := newModel(nodes...)
	together(m)
	tick := adapt(m)
	begin := m.now
	jobs := make([]*mjob, len(history))
	ends := make([]float64, len(history))
	for s, left := 0, len(history); left > 0; s++ {
		for i, a := range history {
			if a.atS == s {
				p := app(fmt.Sprint("app", i), a.takes, a.gpu, a.mem)
				j := m.submit(a.user, 100*time.Hour, p, tick != nil && a.whole == 0)
				jobs[i] = j
				if a.whole > 0 {
					j.Request = job.GPURequest{Kind: job.WholeGPU, Count: a.whole, Raw: fmt.Sprint("gres:gpu:", a.whole)}
				}
				j.ReqNodes = a.node
				j.TimeLimit = time.Duration(a.limit) * time.Second
			}
		}
		if tick != nil {
			tick()
		}
		m.advance(time.Second)
		for i, j := range jobs {
			if j != nil && j.ended && ends[i] == 0 {
				if ends[i] = m.now.Sub(begin).Seconds(); j.State != "COMPLETED" {
					ends[i] = math.Inf(1)
				}
				left--
			}
		}
		if s > 20_000 {
			return nil
		}
	}
	return ends
}

// site is what a history happens on.
type site struct {
	nodes   []job.Node
	oneUser bool
}

// nobodyIsLater plays a history on plain Slurm and with the bridge, and compares when each job ends.
func nobodyIsLater(t must.T, on site, history []arrival) {
	plain := play(history, on.nodes, func(*model) func() { return nil })
	card := rlcore.TitanXp
	card.SameUser = on.oneUser
	bridged := play(history, on.nodes, func(m *model) func() {
		b := bridge(m, newMemory())
		b.Specs = func(string) (rlcore.GPUSpec, bool) { return card, true }
		return func() { must.Get(b.Tick(context.Background()))(t) }
	})
	if plain == nil || bridged == nil {
		t.Fatal("jobs never end")
	}
	for i, a := range history {
		// A start takes the bridge three seconds at most, and as many jobs may have started one after the other.
		slack := rlcore.DefaultGrace*a.takes + 3*float64(len(history))
		if late := bridged[i] - plain[i]; late > slack {
			t.Errorf("job %d of %+v ends %v s later than on plain Slurm (%v, %v)", i, a, late, bridged[i], plain[i])
		}
	}
}

// Where every prediction is right no job ends later than on plain Slurm, whatever comes when and on which nodes, but
// for its grace and the seconds that the bridge takes. Jobs of higher priority that come later are not among them: in
// those seconds they may take the turn of a job in front, and jobs that share may have begun before their turn. For the
// same reason jobs of whole GPUs come seconds after the ones in front. Jobs bound to nodes are where all come at once
// and each is bound: another job may else take the node of a bound one, where two nodes become free seconds apart. Jobs
// of several GPUs are not: a node that has some of its GPUs free for longer can make any job later.
func TestNobodyIsLater(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		var on site
		for i := range rapid.IntRange(1, 4).Draw(t, "nodes") {
			on.nodes = append(on.nodes, node(fmt.Sprint("n", i), rapid.SampledFrom([]int{1, 1, 2}).Draw(t, "GPUs"), 64))
		}
		var history []arrival
		kind := rapid.SampledFrom([]string{
			"", "", "", "nobody shares", "bound to nodes", "near their limits",
			"whole GPUs",
		}).Draw(t, "kind")
		atS := 5
		for range rapid.IntRange(2, 16).Draw(t, "jobs") {
			if kind != "bound to nodes" {
				atS += rapid.SampledFrom([]int{0, 0, 1, 10, 60, 200}).Draw(t, "comes after")
			}
			a := arrival{
				atS: atS, user: rapid.SampledFrom([]string{"ann", "ann", "bob", "eve"}).Draw(t, "user"),
				takes: float64(rapid.IntRange(100, 900).Draw(t, "takes")), gpu: rapid.Float64Range(.1, 1).Draw(t, "gpu"),
				mem: rapid.SampledFrom([]float64{500, 4000, 8000}).Draw(t, "MiB"),
			}
			a.limit = 4 * a.takes
			switch kind {
			case "nobody shares":
				a.gpu, a.mem = 1, 12000
			case "bound to nodes":
				a.node = fmt.Sprint("n", rapid.IntRange(0, len(on.nodes)-1).Draw(t, "only on"))
			case "whole GPUs":
				if a.whole = rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "whole GPUs"); a.whole > 0 {
					atS += 4
					a.atS = atS
					a.gpu, a.mem, a.limit = .5, 500, a.takes+1
				}
			case "near their limits":
				a.limit = a.takes * rapid.Float64Range(1.3, 2).Draw(t, "of its limit")
			}
			history = append(history, a)
		}
		on.oneUser = rapid.Bool().Draw(t, "one user")
		nobodyIsLater(t, on, history)
	})
}

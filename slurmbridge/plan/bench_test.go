package plan

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/baseline"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/slurmbridge/job"
)

// slowing predicts that each further member of a group slows all by such a part.
type slowing float64

func (s slowing) Predict(dst []rlcore.Prediction, _ *rlcore.GPUSpec, members []*rlcore.Profile) {
	for i := range dst {
		dst[i] = rlcore.Prediction{Slowdown: 1 + float64(s)*float64(len(members)-1)}
	}
}

// idleCluster is so many nodes of one idle GPU and waiting jobs of the given applications in turn.
func idleCluster(gpus, jobs int, of ...*rlcore.Profile) *Input {
	all := make([]job.Job, jobs)
	for i := range all {
		all[i] = sharer(fmt.Sprint(i))
	}
	in := oneGPU(all...)
	one := in.Snap.Nodes[0]
	in.Snap.Nodes = nil
	for n := range gpus {
		one.Name = fmt.Sprint("n", n)
		in.Snap.Nodes = append(in.Snap.Nodes, one)
	}
	for i := range all {
		p := of[i%len(of)]
		in.Snap.Jobs[i].Priority = int64(jobs - i)
		in.Apps[all[i].Ref] = job.App{Key: p.App, Profile: p}
	}
	return in
}

// shortest is a planner whose srpt policy trusts a predictor, for groups of three at the most.
func shortest(p rlcore.Predictor) *Planner {
	guard := rlcore.NewGuard(rlcore.Rules{Predictor: p, MaxMembers: 3})
	return &Planner{Decider: &rlcore.Decider{Policy: baseline.NewSRPT(p), Guard: guard}}
}

// sizes counts the groups of a plan by the number of their members.
func sizes(p *job.Plan) map[int]int {
	out := map[int]int{}
	for i := range p.Groups {
		out[len(p.Groups[i].Group.Members)]++
	}
	return out
}

// However many GPUs are idle at once, each gets a group if sharing costs little: the time that a group saves shows only
// behind as many jobs as there are GPUs.
func TestManyIdleGPUsAllShare(t *testing.T) {
	for _, gpus := range []int{10, 250, 300, 500} {
		got := sizes(shortest(slowing(.02)).Plan(idleCluster(gpus, 10*gpus, runs(600, 100))))
		must.Equal(t, got[3], gpus, "groups of three on as many idle GPUs, among %v", got)
	}
}

// taught is the interference model after 20 co-runs of each pair of applications, as slow as the law has them.
func taught(of []*rlcore.Profile) *interference.Model {
	law, model := interference.New(&contention.MPS), interference.New(&contention.MPS)
	for _, a := range of {
		for _, b := range of {
			pair, pred := []*rlcore.Profile{a, b}, make([]rlcore.Prediction, 2)
			law.Predict(pred, &rlcore.TitanXp, pair)
			for range 20 {
				model.Observe(&rlcore.TitanXp, pair, pred[0].Slowdown, math.NaN(), 1)
			}
		}
	}
	return model
}

// BenchmarkIdle is one plan for a cluster whose GPUs are all idle: one application that slows little, and the thesis's
// applications as the interference model predicts them.
func BenchmarkIdle(b *testing.B) {
	var catalogue []*rlcore.Profile
	for _, name := range apps.Names() {
		p, _ := apps.ByName(name)
		catalogue = append(catalogue, p)
	}
	model := taught(catalogue)
	one := []*rlcore.Profile{runs(600, 100)}
	for _, c := range []struct {
		name       string
		gpus, jobs int
		of         []*rlcore.Profile
		by         rlcore.Predictor
	}{
		{"one", 250, 5000, one, slowing(.02)},
		{"one", 500, 5000, one, slowing(.02)},
		{"one", 2000, 20000, one, slowing(.02)},
		{"model", 250, 5000, catalogue, model},
		{"model", 500, 5000, catalogue, model},
		{"model", 1000, 10000, catalogue, model},
		{"inVain", 500, 5000, one, slowing(.2)},
	} {
		b.Run(fmt.Sprintf("%s/gpus=%d/jobs=%d", c.name, c.gpus, c.jobs), func(b *testing.B) {
			in, p := idleCluster(c.gpus, c.jobs, c.of...), shortest(c.by)
			var plan *job.Plan
			for b.Loop() {
				plan = p.Plan(in)
			}
			for size, n := range sizes(plan) {
				b.ReportMetric(float64(n), fmt.Sprint("groups-of-", size))
			}
		})
	}
}

// BenchmarkBusyBesideIdle is one plan for 1,000 busy GPUs with 10,000 waiting jobs, next to an idle partition that none
// of them may use.
func BenchmarkBusyBesideIdle(b *testing.B) {
	const gpus, jobs = 1000, 10_000
	in := idleCluster(gpus, jobs, runs(600, 100))
	for g := range gpus {
		j := running(fmt.Sprint("r", g), fmt.Sprint("n", g), 0, job.WholeGPU, 0)
		j.TimeLimit, j.Partition, j.CPUs = in.Snap.Jobs[0].TimeLimit, "gpu", 1
		in.Snap.Jobs = append(in.Snap.Jobs, j)
		other := in.Snap.Nodes[g]
		other.Name, other.Partitions = fmt.Sprint("other", g), []string{"other"}
		in.Snap.Nodes = append(in.Snap.Nodes, other)
	}
	p := shortest(slowing(.02))
	for b.Loop() {
		p.Plan(in)
	}
}

// BenchmarkKept is one plan for 500 nodes of eight GPUs with 5,000 waiting jobs. Slurm keeps 60 half idle nodes for
// jobs of two nodes; or each node is one user's at a time.
func BenchmarkKept(b *testing.B) {
	for _, large := range []int{20, 0} {
		b.Run(fmt.Sprintf("large=%d", large), func(b *testing.B) {
			in := idleCluster(500, 5000, runs(600, 100))
			in.Snap.OneUser = map[string]bool{"gpu": large == 0}
			for i := range in.Snap.Jobs {
				in.Snap.Jobs[i].TimeLimit = 10 * time.Hour
			}
			for n := range in.Snap.Nodes {
				node := &in.Snap.Nodes[n]
				node.GPUs, node.Units, node.CPUs, node.Planned = 8, 8*job.Units, 256, large > 0 && n < 60
				for g := range 4 * (1 + min(n/60, 1)) {
					j := running(fmt.Sprint("r", n, "-", g), node.Name, g, job.WholeGPU, 0)
					j.TimeLimit, j.Partition, j.User, j.CPUs = time.Hour, "gpu", node.Name, 1
					in.Snap.Jobs = append(in.Snap.Jobs, j)
				}
			}
			for f := range large {
				j := whole(fmt.Sprint("f", f), 8, 2, "Resources")
				j.Partition, j.TimeLimit, j.Priority = "gpu", 10*time.Hour, int64(1e6-f)
				in.Snap.Jobs = append(in.Snap.Jobs, j)
			}
			p := shortest(slowing(.02))
			for b.Loop() {
				p.Plan(in)
			}
		})
	}
}

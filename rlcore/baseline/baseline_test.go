package baseline

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
	"github.com/slurmbridge/slurmbridge/rlcore/interference"
	"github.com/slurmbridge/slurmbridge/rlcore/policy"
)

func state(names ...string) *rlcore.State {
	s := &rlcore.State{GPUs: []rlcore.GPU{{Spec: rlcore.TitanXp, FreeCPUs: -1, FreeHostMemMiB: -1}}}
	for i, n := range names {
		p, _ := apps.ByName(n)
		s.Pending = append(s.Pending, rlcore.Job{ID: string(rune('a' + i)), User: "u", Profile: p})
	}
	return s
}

func decide(t *testing.T, name string, s *rlcore.State) []int {
	t.Helper()
	m := interference.New(&contention.MPS)
	p := must.Get(policy.New(name, policy.Setup{Predictor: m, Seed: 1}))(t)
	d := rlcore.Decider{Policy: p, Guard: rlcore.NewGuard(rlcore.Rules{Predictor: m})}
	dec := d.Decide(s, 0)
	return dec.Jobs()
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		policy string
		queue  []string
		want   []int
	}{
		{"exclusive", []string{"vgg16", "alexnet"}, []int{0}},
		{"sjf", []string{"vgg16", "vgg11", "lammps"}, []int{1}},
		{"pack", []string{"vgg16", "alexnet", "gromacs"}, []int{1, 2}},
		{"pack", []string{"vgg16", "resnet50"}, []int{0}},
		{"pack", []string{"gromacs", "gromacs", "gromacs", "gromacs"}, []int{0, 1, 2}},
		{"greedy", []string{"alexnet", "gromacs"}, []int{0, 1}},
	} {
		must.Equal(t, decide(t, c.policy, state(c.queue...)), c.want, "%s of %v", c.policy, c.queue)
	}
	must.Fail(t, must.Err(policy.New("none", policy.Setup{})), "", "a policy that isn't")
	// Nothing is let in beside one that fills the card.
	s := state("vgg16")
	p, _ := apps.ByName("resnet50")
	s.GPUs[0].Running = []rlcore.Running{{Job: rlcore.Job{ID: "r", User: "u", Profile: p}, Shares: 50}}
	must.Equal(t, decide(t, "pack", s), nil, "what pack starts beside resnet50")
	must.Equal(t, decide(t, "exclusive", s), nil, "what exclusive starts there")
}

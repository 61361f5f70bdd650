package interference

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

// Before anything is seen the law says it, over all ways in which phases may meet.
func TestBeforeAnythingIsSeenTheLawSaysIt(t *testing.T) {
	m := New(&contention.MPS)
	for names, want := range map[[2]string][2]float64{ // the least and the most
		{"gromacs", "alexnet"}: {1, 1.05}, {"vgg16", "resnet50"}: {1.4, 2},
	} {
		var members []*rlcore.Profile
		for _, name := range names {
			p, _ := apps.ByName(name)
			members = append(members, p)
		}
		var dst [2]rlcore.Prediction
		m.Predict(dst[:1], &rlcore.TitanXp, members[:1])
		must.Equal(t, dst[0].Slowdown, 1, "%s alone", names[0])
		m.Predict(dst[:], &rlcore.TitanXp, members)
		for i, p := range dst {
			if p.Slowdown < want[0] || p.Slowdown > want[1] || p.SD <= 0 {
				t.Errorf("%s of %v: %+v, not %v", names[i], names, p, want)
			}
		}
	}
}

// TestKeptAnswers: kept predictions equal fresh ones, also after learning.
func TestKeptAnswers(t *testing.T) {
	m := New(&contention.MPS)
	a, _ := apps.ByName("hoomd")
	b, _ := apps.ByName("lammps")
	members := []*rlcore.Profile{a, b}
	ask := func() [2]rlcore.Prediction {
		var dst [2]rlcore.Prediction
		m.Predict(dst[:], &rlcore.TitanXp, members)
		return dst
	}
	fresh := func() [2]rlcore.Prediction {
		var dst [2]rlcore.Prediction
		m.predict(dst[:], &rlcore.TitanXp, members, m.beliefs(2))
		return dst
	}
	first := ask()
	if again := ask(); again != first || first != fresh() {
		t.Errorf("%v, then %v, in truth %v", first, again, fresh())
	}
	m.all(&rlcore.TitanXp, members, 3, 3)
	if now := ask(); now == first || now != fresh() {
		t.Errorf("after learning %v, in truth %v, before %v", now, fresh(), first)
	}
}

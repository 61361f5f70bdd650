package interference

import (
	"testing"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/apps"
	"github.com/slurmbridge/slurmbridge/rlcore/contention"
)

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
